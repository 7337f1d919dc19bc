package domainxml

import (
	"fmt"

	"github.com/beevik/etree"
)

// CPU gives the guest's <cpu> element as text; false when the document names no
// CPU model (no element, or host-passthrough), so that there is nothing to
// compare with a host.
func (d *Doc) CPU() (string, bool) {
	e := d.root.SelectElement("cpu")
	if e == nil || e.SelectElement("model") == nil {
		return "", false
	}
	return alone(e), true
}

// SetCPU puts a <cpu> element in the place of the guest's own: what libvirt says of
// a running guest in two documents, the one it accepts at a destination and the
// one with the CPU that the guest really has, is brought together by it.
func (d *Doc) SetCPU(element string) error {
	t := etree.NewDocument()
	if err := t.ReadFromString(element); err != nil {
		return fmt.Errorf("cpu element: %w", err)
	}
	if t.Root() == nil || t.Root().Tag != "cpu" {
		return fmt.Errorf("cpu element: %q is none", element)
	}
	if old := d.root.SelectElement("cpu"); old != nil {
		d.root.InsertChildAt(old.Index(), t.Root().Copy())
		d.root.RemoveChild(old)
	} else {
		d.root.AddChild(t.Root().Copy())
	}
	d.changed = true
	return nil
}

// alone writes one element as a document of its own.
func alone(e *etree.Element) string {
	t := etree.NewDocument()
	t.WriteSettings.AttrSingleQuote = true
	t.SetRoot(e.Copy())
	s, err := t.WriteToString()
	if err != nil {
		return "" // writing to memory does not fail
	}
	return s
}
