package domainxml

import (
	"slices"
	"strings"

	"github.com/beevik/etree"
)

// Image is one image that QEMU opens for a guest: a disk, a layer of its chain or of its data
// that the domain XML names, or firmware.
type Image struct {
	What   string // its place in words: "disk vda", "backing file of disk vda", "firmware variables"
	Type   string // file, block, network, volume, …
	Source string // path, PROTOCOL:NAME, POOL/VOLUME
	// Format is raw where the domain XML says none; empty where a storage pool says it.
	Format string
	// Writes: QEMU may write it. Shared: the instance says that others may, too.
	Writes, Shared bool
	// Sliced: it begins elsewhere than at the first byte of its source.
	Sliced bool
	// Open: the domain XML says neither what it stands on nor that it stands on nothing. libvirt
	// reads that from its header, then. Twice: its element says its source or format twice.
	Open, Twice bool
	e           *etree.Element
}

// Below is an image on which another stands.
type Below struct {
	Path, Format string
	Block        bool // a block device
}

// headed are the formats of which libvirt reads the header for what an image stands on
// (VIR_STORAGE_FILE_BACKING and after it).
var headed = []string{"cow", "qcow", "qcow2", "qed", "vmdk"}

// CloseChain writes what an open image of this document stands on, from the top, and that the last
// of it stands on nothing. libvirt reads no header of it, then.
// https://libvirt.org/formatdomain.html#hard-drives-floppy-disks-cdroms: backingStore.
func (d *Doc) CloseChain(i Image, below []Below) {
	at := i.e
	for _, b := range below {
		e := etree.NewElement("backingStore")
		kind, name := "file", "file"
		if b.Block {
			kind, name = "block", "dev"
		}
		e.CreateAttr("type", kind)
		e.CreateElement("format").CreateAttr("type", b.Format)
		e.CreateElement("source").CreateAttr(name, b.Path)
		d.insert(at, e, nil)
		at = e
	}
	d.insert(at, etree.NewElement("backingStore"), nil)
}

// Images lists the images of a guest, in the document's order. Where a domain XML says a thing
// twice, each of the two counts.
func (d *Doc) Images() []Image {
	var out []Image
	for _, e := range d.root.FindElements("./devices/disk") {
		what := "disk " + attribute(e, "target", "dev")
		top := Image{Shared: e.SelectElement("shareable") != nil}
		top.Writes = e.SelectElement("readonly") == nil && e.SelectAttrValue("device", "") != "cdrom"
		out = append(out, layers(e, what, what, top)...)
	}
	for _, tag := range []string{"loader", "nvram"} {
		for _, e := range d.root.FindElements("./os/" + tag) {
			i := Image{What: "loader", Type: "file", Format: e.SelectAttrValue("format", "raw"), Writes: e.SelectAttrValue("readonly", "") != "yes"}
			if tag == "nvram" {
				i.What, i.Writes = "firmware variables", true
			}
			if path := strings.TrimSpace(e.Text()); path != "" {
				i.Source = path
				out = append(out, i)
			}
			for _, s := range e.SelectElements("source") {
				if i.Type = e.SelectAttrValue("type", "file"); i.Type == "network" {
					i.Source = s.SelectAttrValue("protocol", "") + ":" + s.SelectAttrValue("name", "")
				} else {
					i.Source = source(e)
				}
				out = append(out, i)
			}
		}
	}
	return out
}

// layers lists the images of an element like <disk>, and of those in it.
func layers(e *etree.Element, disk, what string, like Image) []Image {
	var formats []string
	for _, tag := range []string{"driver", "format"} {
		for _, f := range e.SelectElements(tag) {
			if v := f.SelectAttrValue("type", ""); v != "" {
				formats = append(formats, v)
			}
		}
	}
	like.What, like.Type = what, e.SelectAttrValue("type", "file")
	if len(formats) == 0 && like.Type == "volume" {
		formats = []string{""}
	} else if len(formats) == 0 {
		formats = []string{"raw"}
	}
	var out []Image
	like.e = e
	like.Twice = len(formats) > 1 || len(e.SelectElements("source")) > 1 || len(e.SelectElements("backingStore")) > 1
	like.Open = (e.Tag == "disk" || e.Tag == "backingStore") && e.SelectElement("backingStore") == nil
	for _, s := range e.SelectElements("source") {
		i := like
		switch i.Type {
		case "file":
			i.Source = s.SelectAttrValue("file", "")
		case "block":
			i.Source = s.SelectAttrValue("dev", "")
		case "network":
			i.Source = s.SelectAttrValue("protocol", "") + ":" + s.SelectAttrValue("name", "")
		case "volume":
			i.Source = s.SelectAttrValue("pool", "") + "/" + s.SelectAttrValue("volume", "")
		}
		i.Sliced = len(s.FindElements("./slices/slice")) > 0
		for _, i.Format = range formats {
			i.Open = like.Open && slices.Contains(headed, i.Format)
			if i.Source != "" {
				out = append(out, i)
			}
		}
		for _, b := range s.SelectElements("dataStore") {
			out = append(out, layers(b, disk, what, like)...)
		}
	}
	below := like
	below.Writes = false
	for _, b := range e.SelectElements("backingStore") {
		out = append(out, layers(b, disk, "backing file of "+disk, below)...)
	}
	for _, b := range e.SelectElements("mirror") {
		out = append(out, layers(b, disk, disk, like)...)
	}
	return out
}
