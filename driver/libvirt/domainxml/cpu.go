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

// HostCPU gives the host's <cpu> element of a capabilities document
// (https://libvirt.org/formatcaps.html), as it stands; empty when there is none.
func HostCPU(capabilities string) (string, error) {
	t := etree.NewDocument()
	if err := t.ReadFromString(capabilities); err != nil {
		return "", fmt.Errorf("capabilities document: %w", err)
	}
	if e := t.FindElement("/capabilities/host/cpu"); e != nil {
		return alone(e), nil
	}
	return "", nil
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
