package stream

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"slices"
	"strings"

	"berth/internal/fault"
)

// cookieElements are the elements of libvirt's migration cookie that pass: what the source's
// QEMU and libvirt can and have (9.0.0 and 11.3.0, qemu_migration_cookie.c). None of them
// names a file or a device of the destination, but for lockstate, which the lock manager that
// is configured there reads, and network, of which Open vSwitch gets a text.
var cookieElements = []string{
	"name", "uuid", "hostname", "hostuuid", "feature", "graphics", "lockstate", "network", "nbd", "statistics",
	"cpu", "allowReboot", "capabilities", "blockDirtyBitmaps",
}

// Bounds of a cookie. A cookie of libvirt's has a few KiB beside its domain XML, and is some
// four elements deep. Arbitrary beyond that.
const (
	cookieMax   = 4 << 20
	cookieDepth = 16
)

// rebuildCookie writes a migration cookie anew, with persistent, an element <domain>, in the
// place of the peer's. libvirt's reader gets only what this one has read: what the two would
// make of the peer's own text may differ. An empty cookie stays empty.
func rebuildCookie(cookie []byte, persistent string) ([]byte, error) {
	if len(cookie) == 0 {
		return nil, nil
	}
	text, ended := bytes.CutSuffix(cookie, []byte{0})
	out, err := rebuilt(text, persistent)
	if err == nil && (!ended || bytes.IndexByte(text, 0) >= 0) {
		err = errors.New("it does not end where libvirt ends it")
	}
	if err != nil {
		return nil, fault.New(fault.Forbidden, "the peer sends a migration cookie that cannot pass: %w", err)
	}
	return append(out, 0), nil
}

func rebuilt(text []byte, persistent string) ([]byte, error) {
	if len(text) > cookieMax {
		return nil, errors.New("it is too long")
	}
	var out bytes.Buffer
	d := xml.NewDecoder(bytes.NewReader(text))
	var open []string
	roots, domains := 0, 0
	for {
		t, err := d.Token()
		switch {
		case errors.Is(err, io.EOF) && roots == 1:
			return out.Bytes(), nil
		case errors.Is(err, io.EOF):
			return nil, errors.New("it is empty")
		case err != nil:
			return nil, err
		}
		switch t := t.(type) {
		case xml.StartElement:
			if len(open) == 1 && t.Name.Space == "" && t.Name.Local == "domain" {
				if domains++; domains > 1 {
					return nil, errors.New("it has more than one domain XML")
				}
				if err := d.Skip(); err != nil {
					return nil, err
				}
				out.WriteString(persistent)
				continue
			}
			switch {
			case len(open) == 0 && (roots > 0 || t.Name.Local != "qemu-migration"):
				return nil, fault.New(fault.Invalid, "its element %.40q is not libvirt's", t.Name.Local)
			case len(open) == 1 && !slices.Contains(cookieElements, t.Name.Local):
				return nil, fault.New(fault.Invalid, "its element %.40q is not known", t.Name.Local)
			case len(open) >= cookieDepth:
				return nil, errors.New("it is too deep")
			case t.Name.Space != "":
				return nil, errors.New("it has elements of other namespaces")
			}
			if len(open) == 0 {
				roots++
			}
			open = append(open, t.Name.Local)
			out.WriteString("<" + t.Name.Local)
			for _, a := range t.Attr {
				if a.Name.Space != "" || a.Name.Local == "xmlns" {
					return nil, errors.New("it has attributes of other namespaces")
				}
				out.WriteString(" " + a.Name.Local + `="`)
				escape(&out, a.Value)
				out.WriteString(`"`)
			}
			out.WriteString(">")
		case xml.EndElement:
			open = open[:len(open)-1]
			out.WriteString("</" + t.Name.Local + ">")
		case xml.CharData:
			if len(open) > 0 {
				escape(&out, string(t))
			}
		case xml.Directive:
			return nil, errors.New("it has a document type")
		}
	}
}

// escape writes text as XML. A buffer takes everything.
func escape(to *bytes.Buffer, text string) { _ = xml.EscapeText(to, []byte(text)) }

// rootOf gives a document's element <domain> alone, without what stands before and after it.
func rootOf(document string) (string, error) {
	d := xml.NewDecoder(strings.NewReader(document))
	for {
		begin := d.InputOffset()
		t, err := d.Token()
		if err != nil {
			return "", fault.New(fault.Invalid, "read domain XML: %w", err)
		}
		if e, ok := t.(xml.StartElement); ok {
			if e.Name.Local != "domain" {
				return "", fault.New(fault.Invalid, "read domain XML: it is of a %.20q", e.Name.Local)
			}
			if err := d.Skip(); err != nil {
				return "", fault.New(fault.Invalid, "read domain XML: %w", err)
			}
			return document[begin:d.InputOffset()], nil
		}
	}
}
