package fileusers

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"berth/agent/host/disks"
	"berth/driver"
	"berth/internal/fault"
)

// Definitions are those of the hypervisor; driver.Driver is one.
type Definitions interface {
	Domains(ctx context.Context) ([]driver.Domain, error)
	XML(ctx context.Context, uuid string, what driver.Document) (string, error)
}

// Pools find the files of volumes; driver.Connector is one.
type Pools interface {
	Pool(ctx context.Context, name string) (driver.Pool, error)
	Volume(ctx context.Context, pool, name string) (driver.Volume, error)
}

// Files look at files; disks.Files does, and says what each promises.
type Files interface {
	disks.Finder
	Image(ctx context.Context, path, format string) (disks.Image, error)
	Openers(paths ...string) ([]disks.Writer, error)
	Empty(dir string) (bool, error)
	Shared(path string) (bool, error)
	Resolve(path string) (string, error)
}

// Sources are what a survey asks.
type Sources struct {
	Definitions Definitions
	// Pools is asked when a definition names a volume; nil Pools where the hypervisor has none.
	Pools func(ctx context.Context) (Pools, error)
	Files Files
	// Elsewhere asks other hosts for files that they may see; nil where there are none.
	Elsewhere Elsewhere
	// SharedDirs are folders whose files other hosts see, whatever their filesystem is.
	SharedDirs []string
	// Bound limits what reading one image may take; nil for no limit but the caller's.
	Bound func(ctx context.Context) (context.Context, context.CancelFunc)
}

// User is a domain whose definition leads to a file.
type User struct {
	Instance string `json:"instance_uuid"`
	Name     string `json:"name"`
	// Below: the file is not named by the definition itself; one of its disks stands on it.
	Below bool `json:"below,omitempty"`
}

// Doubt is what about a domain could not be resolved.
type Doubt string

// The doubts.
const (
	DoubtDefinition Doubt = "definition" // it could not be read: any file may be its
	DoubtVolume     Doubt = "volume"     // a disk is a volume, or of a type, whose file is not known
	DoubtChain      Doubt = "chain"      // what stands below a disk is not known
)

// Unresolved is one doubt.
type Unresolved struct {
	Instance string
	Name     string
	Doubt    Doubt
	What     string // the disk's file or volume; empty for a definition
	Why      string
	below    string // of a volume whose format is raw: it is below this folder; empty for anywhere
}

// String names the domain and what is not known of it.
func (u Unresolved) String() string {
	if u.What == "" {
		return u.Name + " (its definition cannot be read: " + u.Why + ")"
	}
	return u.Name + " (" + u.What + ": " + u.Why + ")"
}

// Survey is who uses which file at one moment.
type Survey struct {
	files      Files
	elsewhere  Elsewhere
	sharedDirs []string
	users      map[string][]User // by disks.Which's key
	named      map[string][]User // by path
	folders    map[string][]User // by path without links: all below it is shown to the guest
	unresolved []Unresolved
}

// Look asks the hypervisor for every definition and reads the images of all disks. It fails
// only where the hypervisor does not answer. It may block for Bound for every image that is
// not raw.
func Look(ctx context.Context, s Sources) (*Survey, error) {
	all, err := s.Definitions.Domains(ctx)
	if err != nil {
		return nil, fault.Wrap(err, "look who uses files: list domains")
	}
	l := looking{Sources: s, survey: &Survey{files: s.Files, elsewhere: s.Elsewhere, sharedDirs: s.SharedDirs, users: map[string][]User{}, named: map[string][]User{}, folders: map[string][]User{}}, images: map[string]chain{}, told: map[string]bool{}, hung: map[string]bool{}}
	for _, d := range all {
		if err := l.domain(ctx, d); err != nil {
			return nil, fault.Wrap(err, "look who uses files: domain %s", d.Name)
		}
	}
	return l.survey, nil
}

// looking is a survey under way.
type looking struct {
	Sources
	survey *Survey
	images map[string]chain // by path and format: each image is read once
	told   map[string]bool  // by domain and path: libvirt has told the chain of a running domain
	hung   map[string]bool  // folders in which reading an image took too long
}

// chain is what is known to stand below an image.
type chain struct {
	files []string
	doubt string // why that is not all; empty where it is
}

func (l *looking) domain(ctx context.Context, d driver.Domain) error {
	for _, what := range []driver.Document{driver.Live, driver.Persistent} {
		if what == driver.Persistent && !(d.Active() && d.Persistent) {
			continue // the live document of a stopped domain is its definition
		}
		text, err := l.Definitions.XML(ctx, d.UUID, what)
		if errors.Is(err, fault.NotFound) {
			continue
		}
		if unanswered(err) {
			return err
		}
		var doc definition
		if err == nil {
			doc, err = parse(text)
		}
		if err != nil {
			l.doubt(d, DoubtDefinition, "", err.Error(), "")
			continue
		}
		for _, n := range doc.paths {
			l.use(d, n.path, n.below)
		}
		for _, dir := range doc.folders {
			if real, err := l.Files.Resolve(dir); err == nil {
				dir = real
			}
			l.survey.folders[dir] = append(l.survey.folders[dir], User{Instance: d.UUID, Name: d.Name})
		}
		for _, t := range doc.unknown {
			l.doubt(d, DoubtVolume, "disk of type "+t, "this version does not know what files are behind that type", "")
		}
		for _, v := range doc.volumes {
			if err := l.volume(ctx, d, v); err != nil {
				return err
			}
		}
		for _, disk := range doc.disks {
			if what == driver.Live && d.Active() && disk.chained {
				l.told[d.UUID+disk.path] = true
			}
			if err := l.image(ctx, d, disk); err != nil {
				return err
			}
		}
	}
	return nil
}

// unanswered reports whether somebody did not answer, so that it is worth asking again.
func unanswered(err error) bool {
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.InDoubt, fault.Busy:
		return true
	}
	return false
}

func (l *looking) doubt(d driver.Domain, doubt Doubt, what, why, below string) {
	u := Unresolved{Instance: d.UUID, Name: d.Name, Doubt: doubt, What: what, Why: why, below: below}
	if !slices.Contains(l.survey.unresolved, u) {
		l.survey.unresolved = append(l.survey.unresolved, u)
	}
}

func (l *looking) use(d driver.Domain, path string, below bool) {
	u := User{Instance: d.UUID, Name: d.Name, Below: below}
	file, err := disks.Which(l.Files, path)
	if err != nil {
		// By its name it is a user all the same; by another name it may be.
		l.doubt(d, DoubtVolume, path, err.Error(), "")
		file = path
	}
	if !slices.Contains(l.survey.users[file], u) {
		l.survey.users[file] = append(l.survey.users[file], u)
	}
	if !slices.Contains(l.survey.named[path], u) {
		l.survey.named[path] = append(l.survey.named[path], u)
	}
}

// carried are the types of pools whose volumes are no files or devices of the host.
var carried = []string{"rbd", "gluster", "sheepdog", "iscsi-direct"}

// folders are the types of pools whose volumes are files below the pool's path.
var folders = []string{"dir", "fs", "netfs", "vstorage"}

// volume resolves a disk that is named by its pool.
func (l *looking) volume(ctx context.Context, d driver.Domain, v volume) error {
	name := "volume " + v.pool + "/" + v.name
	unknown := func(why, below string) {
		if v.format != "raw" {
			below = ""
		}
		l.doubt(d, DoubtVolume, name, why, below)
	}
	pools, err := l.Pools(ctx)
	if err != nil {
		return err
	}
	if pools == nil {
		unknown("the hypervisor does not tell of storage pools", "")
		return nil
	}
	pool, err := pools.Pool(ctx, v.pool)
	switch {
	case unanswered(err):
		return err
	case err != nil:
		unknown(err.Error(), "")
		return nil
	}
	if slices.Contains(carried, pool.Type) {
		if v.format != "raw" && v.format != "" {
			l.doubt(d, DoubtChain, name, "an image of format "+v.format+" in the network is not read", "")
		}
		return nil
	}
	at, err := pools.Volume(ctx, v.pool, v.name)
	path := at.Path
	switch {
	case unanswered(err):
		return err
	case slices.Contains(folders, pool.Type) && (err != nil || !filepath.IsAbs(path)) && filepath.IsAbs(pool.Path):
		// An inactive pool, or one that has not read its folder since: a volume's file has its name.
		path = filepath.Join(pool.Path, v.name)
	case err != nil:
		unknown(err.Error(), pool.Path)
		return nil
	case !filepath.IsAbs(path):
		unknown("it has no path", "")
		return nil
	}
	l.use(d, path, false)
	return l.image(ctx, d, disk{path: path, format: v.format, unknownFormat: v.format == ""})
}

// image finds what stands below a disk. A chain that cannot be read is no doubt where
// libvirt has told that of the running domain, and the kernel will say who has the file open.
func (l *looking) image(ctx context.Context, d driver.Domain, k disk) error {
	told := l.told[d.UUID+k.path]
	if k.network {
		if k.format != "raw" && !told {
			l.doubt(d, DoubtChain, k.path, "an image of format "+k.format+" in the network is not read", "")
		}
		return nil
	}
	if k.format == "raw" && !k.unknownFormat {
		return nil // nothing stands below it
	}
	key := k.format + "\n" + k.path
	c, read := l.images[key]
	if !read {
		var err error
		if c, err = l.read(ctx, k); err != nil {
			return err
		}
		l.images[key] = c
	}
	for _, path := range c.files {
		l.use(d, path, true)
	}
	if c.doubt != "" && !told {
		l.doubt(d, DoubtChain, k.path, c.doubt, "")
	}
	return nil
}

// read reads an image's headers. It fails only when ctx ends.
func (l *looking) read(ctx context.Context, k disk) (chain, error) {
	format := k.format
	if k.unknownFormat {
		format = "qcow2" // the pool's own record of it is not told
	}
	dir := filepath.Dir(k.path)
	if l.hung[dir] {
		return chain{doubt: "images in " + dir + " could not be read in time"}, nil
	}
	bounded, cancel := ctx, func() {}
	if l.Bound != nil {
		bounded, cancel = l.Bound(ctx)
	}
	img, err := l.Files.Image(bounded, k.path, format)
	l.hung[dir] = bounded.Err() != nil
	cancel()
	switch {
	case ctx.Err() != nil:
		return chain{}, fault.New(fault.Unavailable, "read image %s: %w", k.path, context.Cause(ctx))
	case k.unknownFormat && errors.Is(err, disks.ErrOtherFormat):
		return chain{}, nil
	case errors.Is(err, fault.NotFound):
		return l.absent(k.path)
	case err != nil:
		return chain{doubt: err.Error()}, nil
	}
	var c chain
	for _, name := range slices.Concat(img.Backing, img.Outside) {
		switch {
		case filepath.IsAbs(name):
			c.files = append(c.files, name)
		case strings.HasPrefix(name, "json:"), disks.OfNetwork(name):
			if n := disks.ParseName(k.path, name); !n.Known {
				c.doubt = "below it is " + name + ", which is not understood"
			}
		default:
			c.doubt = "below it is " + name + ", which is not understood"
		}
	}
	return c, nil
}

// absent says what a missing image means: nothing, where its folder has other files; that
// its filesystem may not be mounted, where the folder is empty or missing.
func (l *looking) absent(path string) (chain, error) {
	empty, err := l.Files.Empty(filepath.Dir(path))
	switch {
	case err != nil:
		return chain{doubt: err.Error()}, nil
	case empty:
		return chain{doubt: "it is not there, and its folder is empty: its filesystem may not be mounted"}, nil
	}
	return chain{}, nil
}
