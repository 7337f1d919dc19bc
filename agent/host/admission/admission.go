// Package admission decides what the domain XML of an instance that comes from another host may
// name of this one. A host's certificate makes its owner a party of the move, not an operator:
// the emulator, files, devices, labels and amounts are held against what this host's operator
// allows and what the instance's claim holds.
//
// It is pure, but for the symbolic links that Policy.Resolve follows and the headers of images that
// Policy.Layer reads. Check is asked when a
// destination is checked, with what the instance is to have, and again of the domain XML that
// was prepared, with its claim. No libvirt gets what it has not seen.
package admission

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"berth/agent/host/disks"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/topology"
)

// Allowed is what the operator of this host has allowed, beside what Policy has anyway.
type Allowed struct {
	Paths     []string // migration.allowed_paths: folders with all that is in them, files, devices
	Emulators []string // migration.allowed_emulators
	Labels    []string // migration.allowed_labels: MODEL:LABEL, or MODEL:none
	Arguments bool     // migration.allow_qemu_arguments
}

// Policy is what this host allows.
type Policy struct {
	Host      string   // this host's name
	Emulators []string // that libvirt has here
	// AnyEmulator leaves them unasked: the hypervisor runs none.
	AnyEmulator bool
	Loaders     []string // firmware that libvirt offers here
	Images      []string // folders for disks of instances
	Labels      []string // that libvirt gives instances here: "dac:+64055:+64055"
	Allowed     Allowed
	// Resolve gives a path without symbolic links, of what is not there yet below the deepest
	// folder that is. nil for no links.
	Resolve func(path string) (string, error)
	// Layer reads the header of one image (disks.Files.Layer); nil reads none, and what images
	// stand on is not judged. Volume finds a volume of a storage pool; an empty path for none yet.
	Layer  func(path, format string) (disks.Layer, error)
	Volume func(pool, volume string) (path string, network bool, err error)
}

// Claimed is what the instance has of this host.
type Claimed struct {
	Resources topology.Resources
	Devices   []string // addresses of its devices
	// Below are the files on which disks stand that are still to come, by target, as their source
	// tells them.
	Below map[string][]string
	// AnyAmount leaves vCPUs and memory unasked, AnyDevice devices: where there is no claim yet
	// the domain XML has those of the host that it comes from.
	AnyAmount, AnyDevice bool
}

// Other is another instance of this host.
type Other struct {
	Name string
	XML  string // one of its domain XMLs; an instance may be there several times
	Off  bool   // it does not run
}

// Folders of the system that instances have files in. Distributions differ; what is not there
// allows nothing.
var (
	imageFolders = []string{"/var/lib/libvirt/images", "/var/lib/libvirt/boot", "/var/lib/nova/instances"}
	// Folders of which one kind of element alone may name what is in them; see checker.own.
	variableFolders = []string{"/var/lib/libvirt/qemu/nvram"}
	channelFolders  = []string{"/var/lib/libvirt/qemu/channel", "/run/libvirt/qemu/channel", "/var/run/libvirt/qemu/channel"}
	privateFolders  = []string{"/var/lib/libvirt/qemu"}
	logFolders      = []string{"/var/log/libvirt"}
	switchFolders   = []string{"/run/openvswitch", "/var/run/openvswitch", "/usr/local/var/run/openvswitch"}
	// firmwareFolders may be read.
	firmwareFolders = []string{
		"/usr/share/OVMF", "/usr/share/AAVMF", "/usr/share/edk2", "/usr/share/edk2-ovmf", "/usr/share/ovmf", "/usr/share/qemu",
		"/usr/share/qemu-kvm", "/usr/share/qemu-efi-aarch64", "/usr/share/seabios", "/usr/share/ipxe", "/usr/lib/ipxe",
	}
	// plainDevices are nobody's: each process may have them.
	plainDevices = []string{"/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/hwrng", "/dev/net/tun", "/dev/vhost-net", "/dev/vhost-vsock"}
	// systemFolders are never taken for a folder of images because an instance has a disk there.
	systemFolders = []string{
		"/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/root", "/run", "/sbin", "/sys", "/tmp", "/usr",
		"/var/lib/berth", "/var/lib/libvirt/qemu", "/var/log", "/var/run", "/var/tmp",
	}
)

// longestPath is Linux's PATH_MAX.
const longestPath = 4096

// Check gives every reason why an instance may not come here with a domain XML. others are this
// host's instances; those of the same uuid are left out by the caller. An error says that it
// could not be found out.
func Check(doc *domainxml.Doc, p Policy, claimed Claimed, others []Other) []fault.Reason {
	c := checker{p: p, claimed: claimed, name: doc.Name(), used: map[string]use{}}
	return c.check(doc, others)
}

func (c *checker) check(doc *domainxml.Doc, others []Other) []fault.Reason {
	c.prepare(others)
	c.amounts(doc)
	for _, n := range doc.HostNames() {
		c.named(n)
	}
	c.images(doc)
	c.tellPaths()
	return c.reasons
}

// CheckDisk is Check of a domain XML that has a disk alone, to be attached to an instance. Beside the
// disks of its definition here, own, it may have others.
func CheckDisk(doc, own *domainxml.Doc, p Policy, others []Other) []fault.Reason {
	c := checker{p: p, claimed: Claimed{AnyAmount: true}, used: map[string]use{}}
	c.noteFolders(own)
	return c.check(doc, others)
}

// Identity gives every reason why a domain XML may not be defined as the instance with this uuid
// and recorded name. libvirt replaces a definition by uuid, and its file by name.
func Identity(doc *domainxml.Doc, host, uuid, name string, others []Other) []fault.Reason {
	c := checker{}
	switch {
	case !doc.Identified():
		c.no("identity_unclear", "the domain XML does not have one <uuid> and one <name>, each of text alone", "", "", "send it as virsh dumpxml gives it")
	case doc.UUID() != uuid:
		c.no("another_instance", fmt.Sprintf("the domain XML is of instance %s, the claim on %s is for %s", doc.UUID(), host, uuid), doc.UUID(), uuid, "send the domain XML of "+uuid)
	case doc.Name() != name:
		c.no("another_name", fmt.Sprintf("the domain XML names instance %s %q, its record on %s %q", uuid, doc.Name(), host, name), doc.Name(), name, "send it as virsh dumpxml gives it, with its own name")
	case slices.ContainsFunc(others, func(o Other) bool { return o.Name == name }):
		c.no("name_exists", fmt.Sprintf("%s has another domain named %s already", host, name), name, "", "virsh domrename "+fault.Quote(name)+" NEW")
	}
	return c.reasons
}

// use is how another instance uses a thing.
type use struct {
	by             string
	writes, shared bool
	off            bool // it does not run
}

type checker struct {
	p       Policy
	claimed Claimed
	reasons []fault.Reason

	name              string   // the instance's
	plain             []string // what any element may name
	folders, firmware []string // as they are named, and without links
	beside            []string // folders of other instances' disks: files directly in them
	besideMedia       []string // folders of what they only read: files directly in them, to read
	used              map[string]use
	closes, created   bool // see Close

	// outside are the paths that are in no folder that is allowed, by their reason, and templates
	// the disks of instances that are off and stand below a disk.
	outside   []outside
	templates []template
}

type template struct {
	named    domainxml.Named
	real, of string
}

type outside struct {
	named domainxml.Named
	real  string
}

func (c *checker) no(code, message, have, want, change string) {
	// Several images may name one file.
	if r := (fault.Reason{Code: code, Message: message, Have: have, Want: want, Change: change}); !slices.Contains(c.reasons, r) {
		c.reasons = append(c.reasons, r)
	}
}

func (c *checker) resolve(path string) (string, error) {
	if c.p.Resolve == nil {
		return path, nil
	}
	return c.p.Resolve(path)
}

// both gives paths as they are named and without links.
func (c *checker) both(paths ...[]string) []string {
	var out []string
	for _, path := range slices.Concat(paths...) {
		if path == "" {
			continue
		}
		out = append(out, filepath.Clean(path))
		// A folder that cannot be read allows what is named in it, and nothing that a link leads to.
		if real, err := c.resolve(path); err == nil {
			out = append(out, real)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// prepare resolves what is allowed, and reads what other instances use.
func (c *checker) prepare(others []Other) {
	c.plain = c.both(plainDevices, c.p.Allowed.Paths)
	c.folders = c.both(imageFolders, c.p.Images)
	c.firmware = c.both(firmwareFolders, c.p.Loaders)
	for _, o := range others {
		doc, err := domainxml.Parse(o.XML)
		if err != nil {
			c.no("definition_unreadable", fmt.Sprintf("what files instance %s of %s uses cannot be told: %v", o.Name, c.p.Host, err), o.Name, "", "virsh edit "+fault.Quote(o.Name))
			continue
		}
		// libvirt appends the instance's own log here; its domain XML does not name it.
		c.note("/var/log/libvirt/qemu/"+o.Name+".log", use{by: o.Name, writes: true})
		c.noteFolders(doc)
		for _, n := range doc.HostNames() {
			if n.Kind != domainxml.NamedPath && n.Kind != domainxml.NamedVolume && n.Kind != domainxml.NamedNetwork {
				continue
			}
			key := string(n.Kind) + " " + n.Value
			if n.Kind == domainxml.NamedPath {
				if key, err = c.resolve(n.Value); err != nil {
					key = n.Value // of its own name at least
				}
			}
			u := use{by: o.Name, writes: n.Writes, shared: n.Shared, off: o.Off}
			c.note(key, u)
			if n.Kind == domainxml.NamedVolume {
				c.noteVolume(n.Value, u)
			}
		}
	}
}

// noteVolume notes the file of another instance's volume. One whose pool is not active is known by its
// name alone.
func (c *checker) noteVolume(name string, u use) {
	if c.p.Volume == nil {
		return
	}
	pool, volume, _ := strings.Cut(name, "/")
	at, _, err := c.p.Volume(pool, volume)
	if err != nil || at == "" {
		return
	}
	c.note(at, u)
	if real, err := c.resolve(at); err == nil {
		c.note(real, u)
	}
}

func (c *checker) note(key string, u use) {
	if was, there := c.used[key]; there && was.writes && !(was.off && u.writes && !u.off) {
		return
	}
	c.used[key] = u
}

// noteFolders notes the folders of an instance's disks.
func (c *checker) noteFolders(doc *domainxml.Doc) {
	for _, n := range doc.HostNames() {
		if n.Kind != domainxml.NamedPath || n.Device != "disk" || strings.HasPrefix(n.What, "backing") {
			continue
		}
		of := &c.beside
		if !n.Writes {
			of = &c.besideMedia
		}
		noteFolder(of, filepath.Dir(n.Value))
		if real, err := c.resolve(n.Value); err == nil {
			noteFolder(of, filepath.Dir(real))
		}
	}
}

func noteFolder(of *[]string, folder string) {
	if strings.Count(folder, "/") < 2 && folder != "" || inAny(folder, systemFolders) && !volumeGroup(folder) {
		return // /, or one of its own folders, has too much else in it
	}
	*of = append(*of, folder)
}

// volumeGroup reports whether a folder of /dev is one of LVM's volume groups.
func volumeGroup(folder string) bool {
	name, ok := strings.CutPrefix(folder, "/dev/")
	return ok && !strings.Contains(name, "/") && !slices.Contains([]string{
		"block", "bsg", "bus", "char", "cpu", "disk", "dma_heap", "dri", "fd", "hugepages", "input", "mapper", "mqueue", "net", "pts", "shm", "snd", "usb", "vfio", "virtio-ports",
	}, name)
}

// in reports whether a path is a folder or in it.
func in(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/")
}

func inAny(path string, folders []string) bool {
	return slices.ContainsFunc(folders, func(f string) bool { return in(path, f) })
}

// amounts holds vCPUs and memory against the claim.
func (c *checker) amounts(doc *domainxml.Doc) {
	if c.claimed.AnyAmount {
		return
	}
	held := c.claimed.Resources
	change := "ask for a flavor with as much, or take it from the instance first: virsh edit " + fault.Quote(c.name)
	if n, most := doc.MostVCPUs(), held.VCPUs+held.PCPUs; n > most {
		c.no("vcpus_beyond_claim", fmt.Sprintf("the instance has %d vCPUs, and is to have %d on %s", n, most, c.p.Host), strconv.Itoa(n), strconv.Itoa(most), change)
	}
	switch n, err := doc.MostMemoryMB(); {
	case err != nil:
		c.no("memory_unreadable", err.Error(), "", "", "virsh edit "+fault.Quote(c.name))
	case n > held.MemoryMB:
		c.no("memory_beyond_claim", fmt.Sprintf("the instance has %d MiB of memory, and is to have %d MiB on %s", n, held.MemoryMB, c.p.Host),
			fmt.Sprintf("%d MiB", n), fmt.Sprintf("%d MiB", held.MemoryMB), change)
	}
}

// named judges one thing that the domain XML names.
func (c *checker) named(n domainxml.Named) {
	switch n.Kind {
	case domainxml.NamedEmulator:
		c.emulator(n)
	case domainxml.NamedPath:
		c.path(n)
	case domainxml.NamedVolume:
		if c.usedByOther(n, string(n.Kind)+" "+n.Value) {
			c.volume(n)
		}
	case domainxml.NamedNetwork:
		c.usedByOther(n, string(n.Kind)+" "+n.Value)
	case domainxml.NamedArgument:
		if !c.p.Allowed.Arguments {
			c.no("qemu_arguments", fmt.Sprintf("the instance gives QEMU arguments of its own (%s), which %s does not allow from other hosts", n.Value, c.p.Host), n.Value, "",
				c.set("allow_qemu_arguments = true")+"; or take them out: virsh edit "+fault.Quote(c.name))
		}
	case domainxml.NamedLabel:
		if !slices.Contains(c.p.Labels, n.Value) && !slices.Contains(c.p.Allowed.Labels, n.Value) {
			c.no("label_not_allowed", fmt.Sprintf("the instance has a %s of its own, %s, which %s does not allow from other hosts", n.What, n.Value, c.p.Host), n.Value, "",
				c.set("allowed_labels = "+list(c.p.Allowed.Labels, n.Value))+"; or take its <seclabel> out: virsh edit "+fault.Quote(c.name))
		}
	case domainxml.NamedDevice:
		if !c.claimed.AnyDevice && (n.Value == "" || !slices.Contains(c.claimed.Devices, n.Value)) {
			c.no("device_not_claimed", fmt.Sprintf("the instance takes %s %s of %s, which its claim does not hold", n.What, n.Value, c.p.Host), n.Value, "",
				"detach it, or ask for it by an alias in the flavor")
		}
	case domainxml.NamedMarkup:
		c.no("markup", "the domain XML has a "+n.What+", which libvirt never writes", n.What, "", "send it as virsh dumpxml gives it")
	case domainxml.NamedForeign:
		c.no("foreign_namespace", fmt.Sprintf("the domain XML has %s %s of a namespace that libvirt does not write there, and which %s does not take from other hosts", n.What, n.Value, c.p.Host), n.Value, "",
			"send it as virsh dumpxml gives it")
	}
}

// volume refuses a volume whose file another instance uses by another name: a path, or another pool. Pools
// of network storage that is mounted have files, too. One whose pool is not active has none yet.
func (c *checker) volume(n domainxml.Named) {
	if c.p.Volume == nil {
		return
	}
	pool, volume, _ := strings.Cut(n.Value, "/")
	at, _, err := c.p.Volume(pool, volume)
	if err != nil || at == "" {
		return
	}
	if real, err := c.resolve(at); err == nil {
		at = real
	}
	c.usedByOther(n, at)
}

func (c *checker) emulator(n domainxml.Named) {
	if c.p.AnyEmulator {
		return
	}
	known := c.both(c.p.Emulators, c.p.Allowed.Emulators)
	real := n.Value
	if filepath.IsAbs(n.Value) {
		// What cannot be read is none that is known.
		if at, err := c.resolve(n.Value); err == nil {
			real = at
		}
	}
	if !slices.Contains(known, real) {
		c.no("emulator_not_allowed", fmt.Sprintf("the instance runs in %s, which is none of libvirt's emulators on %s", n.Value, c.p.Host), n.Value, strings.Join(c.p.Emulators, ", "),
			c.set("allowed_emulators = "+list(c.p.Allowed.Emulators, n.Value))+"; or change its emulator: virsh edit "+fault.Quote(c.name))
	}
}

// path judges a file, folder, socket or device node. False where something is against it.
func (c *checker) path(n domainxml.Named) bool {
	real, may := c.where(n)
	return real != "" && c.usedByOther(n, real) && may
}

// where judges a path, whoever uses it, and gives it without links; empty where it has none.
func (c *checker) where(n domainxml.Named) (real string, may bool) {
	if !filepath.IsAbs(n.Value) || filepath.Clean(n.Value) != n.Value || len(n.Value) > longestPath || strings.ContainsFunc(n.Value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		c.no("path_not_clean", fmt.Sprintf("the %s of the instance names %q, which is no absolute path without . and ..", n.What, n.Value), n.Value, "", "write its path out: virsh edit "+fault.Quote(c.name))
		return "", false
	}
	real, err := c.resolve(n.Value)
	if err != nil {
		c.no("path_unreadable", fmt.Sprintf("where the %s of the instance leads to on %s cannot be told: %v", n.What, c.p.Host, err), n.Value, "", "mount its storage on "+c.p.Host+", or name the file itself: virsh edit "+fault.Quote(c.name))
		return "", false
	}
	if disks.Private(n.Value) || disks.Private(real) {
		c.no("file_of_berth", fmt.Sprintf("the %s of the instance is %s, a file that a migration of %s keeps or makes", n.What, n.Value, c.p.Host), n.Value, "", "name a file of its own: virsh edit "+fault.Quote(c.name))
		return "", false
	}
	if !n.Folder && (slices.Contains(c.folders, n.Value) || slices.Contains(c.folders, real)) {
		// libvirt would give the folder itself to QEMU's user.
		c.no("folder_not_allowed", fmt.Sprintf("the %s of the instance is %s, the folder of %s for images", n.What, n.Value, c.p.Host), n.Value, "", "name a file in it: virsh edit "+fault.Quote(c.name))
		return "", false
	}
	may = c.allowed(n, n.Value) && c.allowed(n, real)
	if o := (outside{n, real}); !may && !slices.Contains(c.outside, o) {
		c.outside = append(c.outside, o)
	}
	return real, may
}

// allowed reports whether a path may be named there. A folder that the guest sees whole has what
// other instances put there, too: the operator alone allows it.
func (c *checker) allowed(n domainxml.Named, path string) bool {
	switch {
	case inAny(path, c.plain):
		return true
	case n.Folder, n.Device == "filesystem", n.Device == "tpm":
		return false // a folder, or the program or socket that serves one
	}
	dir := filepath.Dir(path)
	return inAny(path, c.folders) || slices.Contains(c.beside, dir) || !n.Writes && (slices.Contains(c.besideMedia, dir) || inAny(path, c.firmware)) || c.own(n, path)
}

// own reports whether a path is one of those that libvirt, Nova and Open vSwitch give an instance:
//
//	element                              path
//	os/nvram                             /var/lib/libvirt/qemu/nvram/…
//	channel of type unix, bound          below /{var/lib,run}/libvirt/qemu/channel in a folder with the instance's name, or
//	                                     /var/lib/libvirt/qemu/org.qemu.guest_agent.0.NAME.sock (Nova)
//	graphics                             /var/lib/libvirt/qemu/domain-ID-NAME/TYPE.sock
//	pstore                               /var/lib/libvirt/qemu/nvram/NAME_PSTORE.raw
//	interface of type vhostuser          a port's socket of Open vSwitch, none by which the switch is configured
//	character device into a file; a log  below /var/log/libvirt
//
// libvirt puts its own sockets into the same folders, by which it and others drive QEMU.
func (c *checker) own(n domainxml.Named, path string) bool {
	folder, file := filepath.Split(path)
	folder = filepath.Clean(folder)
	of := func(parents []string, names ...string) bool {
		return slices.ContainsFunc(c.both(parents), func(p string) bool {
			rest, below := strings.CutPrefix(folder, p)
			return below && slices.Contains(names, rest)
		})
	}
	switch {
	case n.Device == "" && (n.At == "os/nvram" || strings.HasPrefix(n.At, "os/nvram/")):
		return inAny(path, c.both(variableFolders)) && !slices.Contains(c.both(variableFolders), path)
	case n.Device == "pstore":
		return of(variableFolders, "") && file == c.name+"_PSTORE.raw"
	case n.Device == "channel" && n.Type == "unix" && n.Binds:
		target := cmp.Or(n.Target, "unknown.sock") // as libvirt calls it (qemuDomainPrepareChannel)
		if number, name, ok := strings.Cut(strings.TrimPrefix(filepath.Base(folder), "domain-"), "-"); ok && c.short(number, name) && file == target {
			return of(channelFolders, "/target/domain-"+number+"-"+name, "/domain-"+number+"-"+name, "/target/"+number+"-"+name, "/"+number+"-"+name)
		}
		return of(channelFolders, "/target") && file == c.name+"."+target || of(privateFolders, "") && file == "org.qemu.guest_agent.0."+c.name+".sock"
	case n.Device == "graphics" && (n.At == "devices/graphics" || n.At == "devices/graphics/listen"):
		number, name, _ := strings.Cut(strings.TrimPrefix(filepath.Base(folder), "domain-"), "-")
		return c.short(number, name) && of(privateFolders, "/domain-"+number+"-"+name) && file == n.Type+".sock"
	case n.Device == "interface" && n.Type == "vhostuser":
		return of(switchFolders, "") && file != "db.sock" && !strings.HasSuffix(file, ".ctl") && !strings.HasSuffix(file, ".mgmt") && !strings.HasSuffix(file, ".snoop")
	case strings.HasSuffix(n.At, "/log"), n.Type == "file" && n.Device != "disk":
		return inAny(path, c.both(logFolders)) && !slices.Contains(c.both(logFolders), path)
	}
	return false
}

// short reports whether libvirt calls the instance's folders by this number and name: its first
// 20 letters (virDomainDefGetShortName).
func (c *checker) short(number, name string) bool {
	first := []rune(c.name)
	return number != "" && strings.Trim(number, "0123456789") == "" && name == string(first[:min(len(first), 20)])
}

// usedByOther refuses what another instance uses: unless both only read it, or both say that
// others may write it. True where nobody uses it.
func (c *checker) usedByOther(n domainxml.Named, key string) bool {
	if n.Folder {
		for _, path := range slices.Sorted(maps.Keys(c.used)) {
			if in(path, key) && (n.Writes || c.used[path].writes) {
				c.no("used_by_other", fmt.Sprintf("the %s of the instance is folder %s, in which instance %s of %s uses %s", n.What, n.Value, c.used[path].by, c.p.Host, path), n.Value, "",
					"give it a folder of its own: virsh edit "+fault.Quote(c.name))
				return false
			}
		}
	}
	u, there := c.used[key]
	if !there || !n.Writes && !u.writes || n.Shared && u.shared || n.Kind == domainxml.NamedPath && slices.Contains(plainDevices, key) || c.template(n, u, key) {
		return true
	}
	change := "give one of the two another, or make both <shareable/>"
	switch {
	case backing(n) && u.off:
		if t := (template{n, key, u.by}); !slices.Contains(c.templates, t) {
			c.templates = append(c.templates, t)
		}
		return false
	case backing(n):
		change = "virsh shutdown " + fault.Quote(u.by) + " on " + c.p.Host + ", and try again; or " + c.whole(n.What)
	}
	c.no("used_by_other", usedBy(n, u.by, c.p.Host), n.Value, "", change)
	return false
}

func usedBy(n domainxml.Named, by, host string) string {
	return fmt.Sprintf("the %s of the instance is %s, which instance %s of %s uses", n.What, n.Value, by, host)
}

// whole is what makes a disk stand on nothing, where it runs.
func (c *checker) whole(what string) string {
	return "virsh blockpull " + fault.Quote(c.name) + " " + fault.Quote(strings.TrimPrefix(strings.TrimPrefix(what, "backing file of "), "disk ")) + " --wait on its own host, while it runs"
}

// tellPaths tells of all paths outside and all templates together: one line of configuration allows
// all.
func (c *checker) tellPaths() {
	need := map[string]bool{}
	for _, o := range c.outside {
		for _, path := range []string{o.named.Value, o.real} {
			if c.allowed(o.named, path) {
				continue
			}
			// A folder of its own is named whole; of the system's only what is needed.
			if folder := filepath.Dir(path); !o.named.Folder && strings.Count(folder, "/") >= 2 && !inAny(path, systemFolders) {
				path = folder
			}
			need[path] = true
		}
	}
	for _, t := range c.templates {
		need[t.real] = true
	}
	all := slices.Sorted(maps.Keys(need))
	for _, t := range c.templates {
		// To be off is no permission: a disk that is not at work is not a template for that.
		c.no("used_by_other", usedBy(t.named, t.of, c.p.Host), t.named.Value, "", c.set("allowed_paths = "+list(c.p.Allowed.Paths, all...))+"; or "+c.whole(t.named.What))
	}
	for _, o := range c.outside {
		leads := ""
		if o.real != o.named.Value {
			leads = " (" + o.real + ")"
		}
		c.no("path_not_allowed", fmt.Sprintf("the %s of the instance names %s%s, and %s allows instances of other hosts no such path", o.named.What, o.named.Value, leads, c.p.Host),
			o.named.Value, strings.Join(c.p.Images, ", "), c.set("allowed_paths = "+list(c.p.Allowed.Paths, all...)))
	}
}

// set is the remedy of one line of configuration.
func (c *checker) set(line string) string {
	return fmt.Sprintf("on %s say %s in [migration] of /etc/berth/berth.toml, then run systemctl reload berth", c.p.Host, line)
}

// list is a TOML list of what is there and what is to come in.
func list(have []string, more ...string) string {
	var out []string
	for _, v := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(have, more)))) {
		out = append(out, strconv.Quote(v))
	}
	return "[" + strings.Join(out, ", ") + "]"
}
