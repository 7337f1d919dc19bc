package domainxml

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/beevik/etree"

	"berth/topology"
)

// Namespace is Berth's in a domain's <metadata>. libvirt keeps one element of a
// namespace; Berth's is <instance>.
const Namespace = "urn:berth:domain:1"

// Metadata is what Berth keeps in a domain document about its guest.
type Metadata struct {
	Name      string          // the instance's
	Flavor    topology.Flavor // what it asked for
	Epoch     uint64          // of the ownership token when this was written
	Migration string          // uuid of the move that brought it here; may be empty
	// Image are the properties of the image that it was rebuilt from. Nil where there are
	// none; SetMetadata then leaves what is there, and takes it away for an empty map.
	Image map[string]string
}

// Metadata reads Berth's element; false when there is none: the guest is not
// managed. An error names what makes no sense in it.
func (d *Doc) Metadata() (Metadata, bool, error) {
	e := d.instance()
	if e == nil {
		return Metadata{}, false, nil
	}
	m := Metadata{Name: e.SelectAttrValue("name", ""), Migration: e.SelectAttrValue("migration", "")}
	bad := func(name, value string) (Metadata, bool, error) {
		return Metadata{}, true, fmt.Errorf("domain document: metadata of berth: %s is %q", name, value)
	}
	epoch := e.SelectAttrValue("epoch", "0")
	var err error
	if m.Epoch, err = strconv.ParseUint(epoch, 10, 64); err != nil {
		return bad("epoch", epoch)
	}
	if image := ours(e, "image"); image != nil {
		m.Image = pairs(image, "property")
	}
	f := ours(e, "flavor")
	if f == nil {
		return m, true, nil
	}
	m.Flavor.Name = f.SelectAttrValue("name", "")
	for _, n := range []struct {
		name string
		into *int64
	}{{"memory_mb", &m.Flavor.MemoryMB}, {"disk_gb", &m.Flavor.DiskGB}} {
		text := f.SelectAttrValue(n.name, "0")
		if *n.into, err = strconv.ParseInt(text, 10, 64); err != nil || *n.into < 0 {
			return bad("flavor "+n.name, text)
		}
	}
	text := f.SelectAttrValue("vcpus", "0")
	if m.Flavor.VCPUs, err = strconv.Atoi(text); err != nil || m.Flavor.VCPUs < 0 {
		return bad("flavor vcpus", text)
	}
	m.Flavor.ExtraSpecs = pairs(f, "extra_spec")
	return m, true, nil
}

// pairs reads keys and values; nil for none.
func pairs(e *etree.Element, tag string) map[string]string {
	var out map[string]string
	for _, s := range e.ChildElements() {
		if s.Tag != tag || s.NamespaceURI() != Namespace {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[s.SelectAttrValue("key", "")] = s.SelectAttrValue("value", "")
	}
	return out
}

// instance is Berth's element, by namespace: libvirt may change the prefix.
func (d *Doc) instance() *etree.Element {
	if m := d.root.SelectElement("metadata"); m != nil {
		return ours(m, "instance")
	}
	return nil
}

func ours(e *etree.Element, tag string) *etree.Element {
	for _, c := range e.ChildElements() {
		if c.Tag == tag && c.NamespaceURI() == Namespace {
			return c
		}
	}
	return nil
}

// SetMetadata writes Berth's element; what a newer Berth put into it and others'
// metadata stay.
func (d *Doc) SetMetadata(m Metadata) {
	if was, there, err := d.Metadata(); there && err == nil && equal(was, m) {
		return
	}
	d.changed = true
	e := d.instance()
	if e == nil {
		meta := d.root.SelectElement("metadata")
		if meta == nil {
			meta = etree.NewElement("metadata")
			// Where libvirt puts it; it would not mind another place.
			at := d.root.SelectElement("name").Index() + 1
			for _, before := range []string{"uuid", "title", "description"} {
				if b := d.root.SelectElement(before); b != nil {
					at = max(at, b.Index()+1)
				}
			}
			d.root.InsertChildAt(at, etree.NewText("\n  "))
			d.root.InsertChildAt(at+1, meta)
		}
		e = etree.NewElement("berth:instance")
		e.CreateAttr("xmlns:berth", Namespace)
		place(meta, e, 4)
	}
	e.CreateAttr("name", m.Name)
	e.CreateAttr("epoch", strconv.FormatUint(m.Epoch, 10))
	if e.RemoveAttr("migration"); m.Migration != "" {
		e.CreateAttr("migration", m.Migration)
	}
	tag := func(name string) string {
		if e.Space == "" {
			return name
		}
		return e.Space + ":" + name
	}
	f := ours(e, "flavor")
	if f == nil {
		f = etree.NewElement(tag("flavor"))
		place(e, f, 6)
	}
	f.CreateAttr("name", m.Flavor.Name)
	f.CreateAttr("vcpus", strconv.Itoa(m.Flavor.VCPUs))
	f.CreateAttr("memory_mb", strconv.FormatInt(m.Flavor.MemoryMB, 10))
	f.CreateAttr("disk_gb", strconv.FormatInt(m.Flavor.DiskGB, 10))
	setPairs(f, "extra_spec", tag("extra_spec"), m.Flavor.ExtraSpecs)
	if m.Image == nil {
		return
	}
	image := ours(e, "image")
	switch {
	case len(m.Image) == 0:
		if image != nil {
			remove(image)
		}
		return
	case image == nil:
		image = etree.NewElement(tag("image"))
		place(e, image, 6)
	}
	setPairs(image, "property", tag("property"), m.Image)
}

// setPairs writes keys and values in the place of those that are there.
func setPairs(e *etree.Element, name, tag string, pairs map[string]string) {
	for _, s := range e.ChildElements() {
		if s.Tag == name && s.NamespaceURI() == Namespace {
			remove(s)
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(pairs), cmp.Compare) {
		s := etree.NewElement(tag)
		s.CreateAttr("key", k)
		s.CreateAttr("value", pairs[k])
		place(e, s, 8)
	}
}

// RemoveMetadata takes Berth's element away: the guest is released.
func (d *Doc) RemoveMetadata() {
	if e := d.instance(); e != nil {
		remove(e)
		d.changed = true
	}
}

// place appends a child at a depth of white space, as libvirt indents.
func place(parent, e *etree.Element, depth int) {
	pad := fmt.Sprintf("\n%*s", depth, "")
	at := len(parent.Child)
	if at > 0 {
		if c, ok := parent.Child[at-1].(*etree.CharData); ok && blank(c) {
			at-- // the end tag's own indentation stays before it
		}
	}
	parent.InsertChildAt(at, etree.NewText(pad))
	parent.InsertChildAt(at+1, e)
	if at+2 == len(parent.Child) {
		parent.CreateText(fmt.Sprintf("\n%*s", depth-2, ""))
	}
}

func equal(a, b Metadata) bool {
	return a.Name == b.Name && a.Epoch == b.Epoch && a.Migration == b.Migration &&
		a.Flavor.Name == b.Flavor.Name && a.Flavor.Resources() == b.Flavor.Resources() &&
		maps.Equal(a.Flavor.ExtraSpecs, b.Flavor.ExtraSpecs) && (b.Image == nil || maps.Equal(a.Image, b.Image))
}
