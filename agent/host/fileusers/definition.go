package fileusers

import (
	"encoding/xml"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/fault"
)

// definition is what a domain's document says of files.
type definition struct {
	paths   []named // every absolute path in it, whatever it is for
	disks   []disk  // those with a file, a device or an image in the network
	volumes []volume
	folders []string // shown whole by disks of type dir
	unknown []string // types of disks that this version does not know
}

// types are those of libvirt's disks. Nothing of a device, or of what another process serves, is a
// file that the domain itself opens: what that process has open is seen by the kernel.
var types = []string{"", "file", "block", "volume", "network", "dir", "nvme", "vhostuser", "vhostvdpa"}

// disk is one layer that a document names, and whose image may name others.
type disk struct {
	path          string // of an image in the network what it is called there
	format        string
	unknownFormat bool // the document leaves it to a storage pool
	network       bool
	chained       bool // the document says what stands below it, to the end
}

// named is a path, and whether the document has it as a layer below a disk.
type named struct {
	path  string
	below bool
}

type volume struct{ pool, name, format string }

type layer struct {
	Type   string `xml:"type,attr"`
	Driver struct {
		Type string `xml:"type,attr"`
	} `xml:"driver"`
	Format struct {
		Type string `xml:"type,attr"`
	} `xml:"format"` // of layers but the first
	Source struct {
		File     string `xml:"file,attr"`
		Dev      string `xml:"dev,attr"`
		Dir      string `xml:"dir,attr"`
		Pool     string `xml:"pool,attr"`
		Volume   string `xml:"volume,attr"`
		Protocol string `xml:"protocol,attr"`
		Name     string `xml:"name,attr"`
	} `xml:"source"`
	Below  *layer `xml:"backingStore"`
	Mirror *layer `xml:"mirror"`
}

// parse reads a document. Paths are collected wherever they stand, so that a device that
// this version does not know still counts; what Berth or others note as metadata does not.
func parse(text string) (definition, error) {
	var out definition
	if err := out.collect(text); err != nil {
		return definition{}, fault.New(fault.Invalid, "read its definition: %w", err)
	}
	var doc struct {
		OS struct {
			NVRAM layer `xml:"nvram"`
		} `xml:"os"`
		Disks []layer `xml:"devices>disk"`
	}
	if err := xml.Unmarshal([]byte(text), &doc); err != nil {
		return definition{}, fault.New(fault.Invalid, "read its definition: %w", err)
	}
	for _, d := range append(doc.Disks, doc.OS.NVRAM) {
		out.layers(&d)
	}
	return out, nil
}

func (d *definition) collect(text string) error {
	in := xml.NewDecoder(strings.NewReader(text))
	root, below := false, 0
	add := func(value string) {
		value = strings.TrimSpace(value)
		if n := (named{filepath.Clean(value), below > 0}); filepath.IsAbs(value) && !slices.Contains(d.paths, n) {
			d.paths = append(d.paths, n)
		}
	}
	for {
		token, err := in.Token()
		if errors.Is(err, io.EOF) {
			if !root {
				return errors.New("it is no domain's document")
			}
			return nil
		}
		if err != nil {
			return err
		}
		switch t := token.(type) {
		case xml.StartElement:
			if t.Name.Local == "metadata" {
				if err := in.Skip(); err != nil {
					return err
				}
				continue
			}
			root = true
			if t.Name.Local == "backingStore" {
				below++
			}
			for _, a := range t.Attr {
				add(a.Value)
			}
		case xml.EndElement:
			if t.Name.Local == "backingStore" {
				below--
			}
		case xml.CharData:
			add(string(t))
		}
	}
}

// layers adds a disk and what its document says of the layers below it and of the file to
// which it is being copied.
func (d *definition) layers(top *layer) {
	for l := top; l != nil; l = l.Below {
		format := l.Driver.Type
		if format == "" {
			format = l.Format.Type
		}
		s := l.Source
		if !slices.Contains(types, l.Type) && !slices.Contains(d.unknown, l.Type) {
			d.unknown = append(d.unknown, l.Type)
		}
		if l.Type == "dir" && filepath.IsAbs(s.Dir) {
			d.folders = append(d.folders, filepath.Clean(s.Dir))
		}
		// libvirt takes a disk without a format for raw.
		k := disk{path: s.File, format: format, chained: l.ends()}
		if k.format == "" {
			k.format = "raw"
		}
		if k.path == "" {
			k.path = s.Dev
		}
		switch {
		case s.Volume != "":
			d.volumes = append(d.volumes, volume{pool: s.Pool, name: s.Volume, format: format})
		case s.Protocol != "":
			k.path, k.network = s.Protocol+":"+s.Name, true
			d.disks = append(d.disks, k)
		case filepath.IsAbs(k.path):
			d.disks = append(d.disks, k)
		}
		if l.Mirror != nil {
			d.layers(l.Mirror)
		}
	}
}

// ends reports whether the layers below are told to the last: libvirt ends a chain that it
// has read with an empty element.
func (l *layer) ends() bool {
	below := l.Below
	for ; below != nil; below = below.Below {
		if below.Type == "" {
			return true
		}
	}
	return false
}
