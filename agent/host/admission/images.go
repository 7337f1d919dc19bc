package admission

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"berth/agent/host/disks"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
)

// deepest is how many images one may stand on, libvirt's own limit.
const deepest = 200

// CheckImages is Check of what the images of an instance stand on alone. Headers can change after
// Check: whoever writes the shared storage writes them.
func CheckImages(doc *domainxml.Doc, p Policy, others []Other) []fault.Reason {
	c := checker{p: p, name: doc.Name(), used: map[string]use{}}
	c.prepare(others)
	c.images(doc)
	c.tellPaths()
	return c.reasons
}

// Close is CheckImages of a domain XML by which libvirt starts the instance next. It writes what was
// read into it: libvirt reads no header again, which may have changed since. created tells that
// libvirt makes files that are not there, which stand on nothing.
func Close(doc *domainxml.Doc, p Policy, others []Other, created bool) []fault.Reason {
	c := checker{p: p, name: doc.Name(), used: map[string]use{}, closes: true, created: created}
	c.prepare(others)
	c.images(doc)
	c.tellPaths()
	return c.reasons
}

// images judges the files that the headers of an instance's images name. The domain XML does not
// name them, and QEMU opens them all the same.
func (c *checker) images(doc *domainxml.Doc) {
	if c.p.Layer == nil {
		return
	}
	for _, i := range doc.Images() {
		path := i.Source
		switch i.Type {
		case "file", "block":
		case "network":
			if i.Format != "raw" {
				c.unread(i.What, i.Source, "an image of format "+i.Format+" in the network is not read", "qemu-img convert -O raw "+fault.Quote(i.Source)+" NEW, and give it as its disk")
			}
			continue
		case "volume":
			// Its pool may have been started since.
			c.volume(domainxml.Named{Kind: domainxml.NamedVolume, Device: "disk", What: i.What, Value: i.Source, Writes: i.Writes, Shared: i.Shared})
			pool, volume, _ := strings.Cut(i.Source, "/")
			at, network, err := c.p.Volume(pool, volume)
			switch {
			case err != nil || !network && at == "":
				continue // its pool is not active yet: it is read before the instance starts
			case network && i.Format != "raw" && i.Format != "":
				c.unread(i.What, i.Source, "an image of format "+i.Format+" in the network is not read", "qemu-img convert -O raw "+fault.Quote(i.Source)+" NEW, and give it as its disk")
				continue
			case network:
				continue
			}
			path = at
		default:
			continue
		}
		below, whole := c.image(i, path)
		switch {
		case !c.closes || !i.Open:
		case i.Twice:
			c.unread(i.What, path, "the domain XML says its source, format or backing file twice", "send it as virsh dumpxml gives it")
		case whole:
			doc.CloseChain(i, below)
		}
	}
}

// image reads one image's chain, and gives what it stands on. whole tells that this is all. Each
// layer is read only after its path was allowed: opening a device can do anything.
func (c *checker) image(i domainxml.Image, path string) (below []domainxml.Below, whole bool) {
	target := strings.TrimPrefix(i.What, "backing file of ")
	device, at := "disk", "devices/disk"
	if !strings.HasPrefix(target, "disk ") {
		device, at = "", "os/"+map[string]string{"firmware variables": "nvram"}[target]
	}
	naming := func(what, path string, writes bool) domainxml.Named {
		return domainxml.Named{Kind: domainxml.NamedPath, Device: device, At: at, What: what, Value: path, Writes: writes, Shared: i.Shared}
	}
	named := func(what, path string, writes bool) bool { return c.path(naming(what, path, writes)) }
	if i.Type != "volume" && !named(i.What, path, i.Writes) {
		return below, false
	}
	read := map[string]bool{}
	for format := i.Format; format != "raw" && len(read) < deepest; {
		read[path] = true
		if i.Sliced {
			c.unread(i.What, path, "it begins within its file", "give it a file of its own, without <slices>: virsh edit "+fault.Quote(c.name))
			return below, false
		}
		layer, as, err := c.layer(path, format)
		if len(read) == 1 && (errors.Is(err, fault.NotFound) || errors.Is(err, disks.ErrOtherFormat)) {
			// It is still to come, and is read before the instance starts. What is in its place and
			// has no such header is in the way, or does not open in QEMU either.
			for _, path := range c.claimed.Below[strings.TrimPrefix(i.What, "disk ")] {
				c.where(naming("backing file of "+target, path, false))
			}
			if c.closes && !c.created && i.Open && errors.Is(err, fault.NotFound) {
				c.unread(i.What, path, "it is not there", "mount its folder on "+c.p.Host)
			}
			return nil, true
		}
		look := "qemu-img info -U -f " + as + " " + fault.Quote(path) + " on " + c.p.Host + " tells what is wrong with it"
		if err != nil {
			c.unread(i.What, path, err.Error(), look)
			return below, false
		}
		for _, name := range layer.Data {
			n := disks.ParseName(path, name)
			if !filepath.IsAbs(name) || n.Climbs {
				// QEMU takes it from its own working folder, libvirt from the image's.
				c.unread(i.What, path, "its data is in "+name+", which is no absolute path without ..", "qemu-img amend -f "+as+" -o data_file="+fault.Quote(filepath.Join(filepath.Dir(path), filepath.Base(name)))+" "+fault.Quote(path))
				return below, false
			}
			named("data file of "+target, filepath.Clean(name), i.Writes && len(read) == 1)
		}
		if layer.Below == "" {
			return below, true
		}
		n := disks.ParseName(path, layer.Below)
		flatten := "make it whole where it comes from: while it is off qemu-img rebase -p -f " + as + " -b '' " + fault.Quote(path) + "; or " + c.whole(target)
		switch next := ""; {
		case n.Known && len(n.Files) == 0 && !n.Header && (layer.Format == "" || layer.Format == "raw"):
			if c.closes && i.Open {
				c.unread(i.What, path, "below it is "+layer.Below+", which the domain XML does not name", "send it as virsh dumpxml gives it for an instance that runs")
			}
			return below, false // reached through the network
		case !n.Plain || n.Climbs || strings.HasPrefix(layer.Below, "..") && !c.straight(filepath.Dir(path)):
			c.unread(i.What, path, "below it is "+layer.Below+", which is no plain path of a file", flatten)
			return below, false
		default:
			next = n.Files[0]
			if !named("backing file of "+target, next, false) {
				return below, false
			}
			if read[next] {
				c.unread(i.What, path, "its backing files lead back to "+next, flatten)
				return below, false
			}
			path = next
		}
		format = n.Format
		if format == "" {
			format = layer.Format
		}
		if format == "" {
			format = "raw" // libvirt does not probe either
		}
		real, err := c.resolve(path)
		if err != nil {
			return below, false // which named has told
		}
		below = append(below, domainxml.Below{Path: path, Format: format, Block: in(real, "/dev")})
		if len(read) == deepest && format != "raw" {
			c.unread(i.What, i.Source, fmt.Sprintf("it stands on more than %d files", deepest), flatten)
		}
	}
	return below, true
}

// layer reads one image. Where the domain XML leaves its format to a storage pool, that goes by
// the image's header, as libvirt does.
func (c *checker) layer(path, format string) (disks.Layer, string, error) {
	if format != "" {
		l, err := c.p.Layer(path, format)
		return l, format, err
	}
	l, err := c.p.Layer(path, "raw")
	if err != nil || l.Looks == "" {
		return l, "raw", err
	}
	format = l.Looks
	l, err = c.p.Layer(path, format)
	return l, format, err
}

// straight reports whether no part of a folder's path is a link.
func (c *checker) straight(dir string) bool {
	real, err := c.resolve(dir)
	return err == nil && real == dir
}

func (c *checker) unread(what, at, why, change string) {
	c.no("image_unread", fmt.Sprintf("which files the %s of the instance (%s) needs on %s cannot be told: %s", what, at, c.p.Host, why), at, "", change)
}

// template reports whether a file that another instance writes may stand below a disk all the
// same: the other one is off, and this host's operator has allowed the file to other hosts.
func (c *checker) template(n domainxml.Named, u use, key string) bool {
	return u.off && backing(n) && inAny(key, c.both(c.p.Allowed.Paths))
}

func backing(n domainxml.Named) bool {
	return n.Device == "disk" && strings.HasPrefix(n.What, "backing file")
}
