package stream

import (
	"bytes"
	"encoding/xml"
	"io"
	"strings"
	"testing"
)

// hostileXML is a domain XML of the instance that its destination did not prepare.
const hostileXML = `<domain type="kvm"><name>g</name><uuid>` + testGuest + `</uuid><devices><emulator>/tmp/evil</emulator>` +
	`<disk type="block"><source dev="/dev/sda"/><target dev="vda"/></disk><hostdev/></devices></domain>`

func TestGate_Prepare_LibvirtGetsThePreparedXML(t *testing.T) {
	g := testGate()
	out, err := g.pass(prepareBy(flagPaused, "migrate_uri", memoryURI, "destination_xml", hostileXML, "disks_uri", disksURI, "migrate_disks", "vda", "migrate_disks", "vdb"))
	if err != nil {
		t.Fatal(err)
	}
	want := prepareBy(flagPaused, "migrate_uri", memoryURI, "destination_xml", guestXML, "disks_uri", disksURI, "migrate_disks", "vda", "migrate_disks", "vdb")
	if !bytes.Equal(out, want) {
		t.Errorf("libvirt gets %q\nwant %q", out, want)
	}
}

func TestGate_Finish_LibvirtGetsThePreparedDefinition(t *testing.T) {
	g := testGate()
	if _, err := g.pass(prepare(guestXML)); err != nil {
		t.Fatal(err)
	}
	call3 := func(xml, definition string) []byte {
		cookie := "<qemu-migration>\n  <name>g</name>" + definition + "<nbd><disk target=\"vda\" capacity=\"1\"></disk></nbd></qemu-migration>\x00"
		return call(procFinish3Params, parameters("destination_xml", xml, "destination_name", "g"), strings.ReplaceAll(cookie, "\n", "&#xA;"), flagPaused, 0)
	}
	out, err := g.pass(call3(hostileXML, hostileXML))
	if err != nil {
		t.Fatal(err)
	}
	if want := call3(guestXML, persistentXML); !bytes.Equal(out, want) {
		t.Errorf("libvirt gets %q\nwant %q", out, want)
	}
}

func TestCookie_WhatALibvirtDoesNotSendIsRefused(t *testing.T) {
	const head, tail = "<qemu-migration>", "</qemu-migration>\x00"
	for _, tt := range []struct{ name, cookie, why string }{
		{"two definitions", head + hostileXML + hostileXML + tail, "more than one domain XML"},
		{"a definition behind a prefix", head + `<x:domain xmlns:x="u"/>` + tail, "not known"},
		{"an element of another namespace", head + `<name xmlns="u"/>` + tail, "namespaces"},
		{"an entity", `<!DOCTYPE q [<!ENTITY d "x">]>` + head + tail, "document type"},
		{"an entity's use", head + "<name>&d;</name>" + tail, "entity"},
		{"another root", "<domain/>\x00", `"domain"`},
		{"two roots", head + "</qemu-migration>" + head + tail, "libvirt's"},
		{"an unknown element", head + "<exec/>" + tail, `"exec" is not known`},
		{"no end", head, "unexpected EOF"},
		{"not ended by a zero", head + "</qemu-migration>", "does not end"},
		{"two texts", head + tail + head + tail, "illegal character"},
		{"too deep", head + "<cpu>" + strings.Repeat("<a>", 20) + strings.Repeat("</a>", 20) + "</cpu>" + tail, "too deep"},
		{"nothing but a zero", "\x00", "empty"},
		{"too long", head + strings.Repeat(" ", cookieMax) + tail, "too long"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if out, err := rebuildCookie([]byte(tt.cookie), persistentXML); err == nil || !strings.Contains(err.Error(), tt.why) {
				t.Errorf("%q, %v: want %q", out, err, tt.why)
			}
		})
	}
}

// FuzzCookie holds that what passes reads the same again, and has no definition but the
// prepared one.
func FuzzCookie(f *testing.F) {
	f.Add([]byte(testCookie))
	f.Add([]byte("<qemu-migration><feature name='persistent'/>" + hostileXML + "<cpu mode='custom'><!-- x --><model>a&amp;b</model></cpu></qemu-migration>\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		out, err := rebuildCookie(data, persistentXML)
		if err != nil || len(out) == 0 {
			return
		}
		again, err := rebuildCookie(out, persistentXML)
		if err != nil || !bytes.Equal(out, again) {
			t.Fatalf("%q becomes %q, then %q: %v", data, out, again, err)
		}
		d := xml.NewDecoder(bytes.NewReader(bytes.TrimSuffix(bytes.ReplaceAll(out, []byte(persistentXML), nil), []byte{0})))
		for depth := 0; ; {
			token, err := d.Token()
			if err == io.EOF {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			switch e := token.(type) {
			case xml.StartElement:
				if depth++; depth == 2 && e.Name.Local == "domain" {
					t.Fatalf("%q becomes %q", data, out)
				}
			case xml.EndElement:
				depth--
			}
		}
	})
}

func TestOrder_WithoutThePreparedXMLIsRefused(t *testing.T) {
	p := newPair(t, inside(t))
	for name, text := range map[string]string{"none": "", "another instance's": strings.Replace(guestXML, testGuest, testMigration, 1)} {
		o := p.in
		o.DestinationXML = text
		if err := o.check(); err == nil || !strings.Contains(err.Error(), "domain XML that this host prepared") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
