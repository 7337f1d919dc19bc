package drivertest

import (
	"encoding/xml"
	"slices"
	"strings"

	"berth/internal/fault"
)

// definition is what the fake understands of a domain document.
type definition struct {
	xml      string
	uuid     string
	name     string
	vcpus    int
	maximum  int // vCPUs that can be plugged in
	memoryMB int64
	agent    bool // has the guest agent's channel
	disks    []disk
}

// disk is a disk that is a file.
type disk struct{ target, path string }

// disk gives the file of a target; empty for none.
func (d *definition) disk(target string) string {
	for _, one := range d.disks {
		if one.target == target {
			return one.path
		}
	}
	return ""
}

// parse reads what the fake needs, with libvirt's answer for what it rejects.
func parse(doc string) (*definition, error) {
	var x struct {
		XMLName xml.Name `xml:"domain"`
		Name    string   `xml:"name"`
		UUID    string   `xml:"uuid"`
		Memory  struct {
			Unit  string `xml:"unit,attr"`
			Value int64  `xml:",chardata"`
		} `xml:"memory"`
		VCPU struct {
			Current int `xml:"current,attr"`
			Max     int `xml:",chardata"`
		} `xml:"vcpu"`
		Disks []struct {
			Source struct {
				File string `xml:"file,attr"`
			} `xml:"source"`
			Target struct {
				Dev string `xml:"dev,attr"`
			} `xml:"target"`
		} `xml:"devices>disk"`
		Channels []struct {
			Target struct {
				Name string `xml:"name,attr"`
			} `xml:"target"`
		} `xml:"devices>channel"`
	}
	if err := xml.Unmarshal([]byte(doc), &x); err != nil {
		return nil, fault.New(fault.Invalid, "domain document: %w", err)
	}
	if x.Name == "" || x.UUID == "" {
		return nil, fault.New(fault.Invalid, "domain document: name and uuid are required")
	}
	unit := map[string]int64{
		"b": 1, "bytes": 1, "": 1 << 10, "KiB": 1 << 10, "k": 1 << 10, "MiB": 1 << 20, "M": 1 << 20, "GiB": 1 << 30, "G": 1 << 30,
		"KB": 1e3, "MB": 1e6, "GB": 1e9,
	}[x.Memory.Unit]
	if unit == 0 || x.Memory.Value <= 0 {
		return nil, fault.New(fault.Invalid, "domain document: memory %d %q", x.Memory.Value, x.Memory.Unit)
	}
	d := &definition{xml: doc, uuid: x.UUID, name: x.Name, memoryMB: (x.Memory.Value*unit + 1<<20 - 1) >> 20}
	d.vcpus = max(x.VCPU.Max, 1)
	d.maximum = d.vcpus
	for _, e := range x.Disks {
		if e.Source.File != "" {
			d.disks = append(d.disks, disk{e.Target.Dev, e.Source.File})
		}
	}
	for _, c := range x.Channels {
		d.agent = d.agent || c.Target.Name == "org.qemu.guest_agent.0"
	}
	if x.VCPU.Current > 0 {
		d.vcpus = x.VCPU.Current
	}
	return d, nil
}

// requires reports which of the features a document's CPU needs.
func requires(doc string, features []string) []string {
	var x struct {
		Features []struct {
			Name   string `xml:"name,attr"`
			Policy string `xml:"policy,attr"`
		} `xml:"cpu>feature"`
	}
	// A document that cannot be read was refused by Define; here it needs nothing.
	_ = xml.NewDecoder(strings.NewReader(doc)).Decode(&x)
	var out []string
	for _, f := range x.Features {
		if (f.Policy == "require" || f.Policy == "force" || f.Policy == "") && slices.Contains(features, f.Name) {
			out = append(out, f.Name)
		}
	}
	return out
}
