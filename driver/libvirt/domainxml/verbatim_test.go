package domainxml

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/topology"
)

// inserted gives what one text has in one place more than the other; false when
// they differ otherwise.
func inserted(before, after string) (string, bool) {
	i := 0
	for i < len(before) && i < len(after) && before[i] == after[i] {
		i++
	}
	rest := len(before) - i
	if len(after)-rest < i || after[len(after)-rest:] != before[i:] {
		return "", false
	}
	return after[i : len(after)-rest], true
}

// Berth's metadata is put in, and not one byte of the rest is another.
func TestVerbatim_MetadataIsOnlyPutIn(t *testing.T) {
	ours := regexp.MustCompile(`^[\s\S]*<berth:instance [\s\S]*</berth:instance>[\s\S]*$`)
	for _, name := range fixtures(t) {
		text := fixture(t, name)
		d := parsed(t, text)
		before := readAll(t, d)
		d.SetMetadata(Metadata{Name: `a "b" <c>`, Epoch: 7, Flavor: topology.Flavor{Name: "f", VCPUs: 1, MemoryMB: 1, ExtraSpecs: map[string]string{"a": "b"}}})
		put, ok := inserted(text, d.String())
		if !ok {
			t.Errorf("%s: more than an insertion:\n%s", name, cmp.Diff(text, d.String()))
			continue
		}
		if !ours.MatchString(put) || strings.Count(put, "<") > 9 {
			t.Errorf("%s: put in was\n%s", name, put)
		}
		if diff := cmp.Diff(before, readAll(t, parsed(t, d.String()))); diff != "" {
			t.Errorf("%s: reads otherwise now (-want +got):\n%s", name, diff)
		}
		again := d.String()
		if d = parsed(t, again); d.String() != again {
			t.Errorf("%s: changed by reading", name)
		}
		// A clone, an epoch later, differs in that only.
		c := d.Clone()
		m, _, _ := c.Metadata()
		m.Epoch++
		c.SetMetadata(m)
		if got := strings.Replace(c.String(), "epoch='8'", "epoch='7'", 1); got != again {
			t.Errorf("%s: a clone's edit (-want +got):\n%s", name, cmp.Diff(again, got))
		}
		d.RemoveMetadata()
		// A <metadata> that was not there stays, empty.
		if got := strings.Replace(d.String(), "\n  <metadata>\n  </metadata>", "", 1); d.String() != text && got != text {
			t.Errorf("%s: released, it is (-want +got):\n%s", name, cmp.Diff(text, d.String()))
		}
	}
}

// A guest that is written for the place that it has is not written anew: lines
// change only where Rebind may write.
func TestVerbatim_RebindToTheSamePlaceKeepsTheRest(t *testing.T) {
	may := regexp.MustCompile(`^\s*</?(vcpu|cputune|vcpupin|emulatorpin|iothreadpin|vcpusched|numatune|memory|memnode|page|hugepages|nodemask)\b`)
	rebound := 0
	for _, name := range fixtures(t) {
		text := fixture(t, name)
		d := parsed(t, text)
		topo, a, _ := d.Assignment(here16(t), cpus(t, "0-1,16-17"))
		b := Binding{Place: Place{Topology: topo, Assignment: a, SharedCPUs: cpus(t, "0-1,16-17")}, Devices: MapDevices(a, a), Mdevs: map[string]string{}}
		for _, uuid := range a.Mdevs {
			b.Mdevs[uuid] = uuid
		}
		if err := d.Rebind(b); err != nil {
			t.Logf("%s: %v", name, err) // its place contradicts itself; refused as a whole
			if d.String() != text {
				t.Errorf("%s: refused, and changed", name)
			}
			continue
		}
		rebound++
		was, is := strings.Split(text, "\n"), strings.Split(d.String(), "\n")
		left := map[string]int{}
		for _, line := range was {
			left[line]++
		}
		for _, line := range is {
			left[line]--
		}
		for line, n := range left {
			if n != 0 && strings.TrimSpace(line) != "" && !may.MatchString(line) && name != "adopt/minimal-by-hand.xml" {
				t.Errorf("%s: line changed (%+d):\n%s", name, -n, line)
			}
		}
	}
	if rebound < 20 {
		t.Errorf("%d documents were rebound", rebound)
	}
}

// An edit of one disk changes the lines of that disk.
func TestVerbatim_AnEditChangesItsElement(t *testing.T) {
	for _, name := range fixtures(t) {
		text := fixture(t, name)
		for _, k := range parsed(t, text).Disks() {
			if k.Type != "file" || k.Source == "" {
				continue
			}
			d := parsed(t, text)
			if err := d.SetDiskSource(k.Target, "/elsewhere/x"); err != nil {
				t.Fatal(err)
			}
			at := strings.Index(text, "<target dev='"+k.Target+"'")
			if at < 0 {
				at = strings.Index(text, `<target dev="`+k.Target+`"`)
			}
			start, end := strings.LastIndex(text[:at], "<disk"), at+strings.Index(text[at:], "</disk>")
			got := d.String()
			if !strings.HasPrefix(got, text[:start]) || !strings.HasSuffix(got, text[end:]) {
				t.Errorf("%s: disk %s (-want +got):\n%s", name, k.Target, cmp.Diff(text, got))
			}
		}
	}
}

// Documents that are none, or try to be more than one, are refused in bounded
// time, or read as what they are.
func TestParse_OddDocuments(t *testing.T) {
	const head = "<domain type='kvm'><name>a</name><uuid>8e3c8f3a-7a4b-4c57-9e0d-0b7d6e0b7d11</uuid><memory>65536</memory>"
	for _, tt := range []struct{ name, text, want string }{
		{"nothing", "", "root element"},
		{"no XML", "\x00\xff\xfe", "domain document"},
		{"half", head, "domain document"},
		{"crossed tags", head + "<a><b></a></b></domain>", "domain document"},
		{"two roots", head + "</domain><domain/>", ""},
		{"an entity of its own", "<!DOCTYPE domain [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;&a;'>]>" + head + "<title>&b;</title></domain>", "entity"},
		{"an external entity", "<!DOCTYPE domain [<!ENTITY x SYSTEM 'file:///etc/passwd'>]>" + head + "<title>&x;</title></domain>", "entity"},
		{"a declaration that nobody uses", "<!DOCTYPE domain [<!ENTITY a 'aaaa'>]>" + head + "</domain>", ""},
		{"too long", head + "<description>" + strings.Repeat("x", 10<<20) + "</description></domain>", "bytes"},
		{"long", head + "<description>" + strings.Repeat("x", 3<<20) + "</description></domain>", ""},
		{"many elements", head + "<devices>" + strings.Repeat("<a b='c'/>\n", 20_000) + "</devices></domain>", ""},
		{"too deep", head + strings.Repeat("<a>", 100_000) + strings.Repeat("</a>", 100_000) + "</domain>", "depth"},
		{"deep", head + strings.Repeat("<a>", 2000) + strings.Repeat("</a>", 2000) + "</domain>", ""},
		{"another encoding", "<?xml version='1.0' encoding='ISO-8859-1'?>" + head + "<title>\xe4</title></domain>", "domain document"},
		{"every element twice", head + strings.TrimPrefix(head, "<domain type='kvm'>") + "<vcpu>2</vcpu><vcpu>3</vcpu></domain>", ""},
		{"one attribute twice", strings.Replace(head, "type='kvm'", "type='kvm' type='qemu'", 1) + "</domain>", ""},
		{"text in CDATA", head + "<vcpu><![CDATA[2]]></vcpu><title><![CDATA[<]]>]]&gt;</title></domain>", ""},
		{"comments within", head + "<vcpu><!-- two -->2<!-- or three --></vcpu></domain>", ""},
		{"another namespace", strings.Replace(strings.Replace(head, "<domain", "<d:domain xmlns:d='urn:d'", 1)+"</d:domain>", "'kvm'", "'kvm'", 1), "root element"},
		{"ends of lines of another system", strings.ReplaceAll(head, "><", ">\r\n<") + "\r\n</domain>\r\n", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			begun := time.Now()
			d, err := Parse(tt.text)
			switch {
			case tt.want == "" && err != nil:
				t.Fatal(err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Fatalf("error %v, want one that says %q", err, tt.want)
			}
			if d != nil {
				_ = readAll(t, d)
				d.SetMetadata(Metadata{Name: "x", Epoch: 1})
				if _, ok := inserted(tt.text, d.String()); !ok {
					t.Error("an edit changed more than its own")
				}
			}
			if took := time.Since(begun); took > 20*time.Second { // a bound on work that grows, not a measure
				t.Errorf("took %s", took)
			}
		})
	}
}

// A few bytes can stand for many numbers: what is read of them has an end.
func TestPinning_ItsListsHaveAnEnd(t *testing.T) {
	const head = "<domain type='kvm'><name>a</name><uuid>8e3c8f3a-7a4b-4c57-9e0d-0b7d6e0b7d11</uuid><memory>65536</memory><vcpu>65536</vcpu>"
	var pins strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&pins, "<vcpupin vcpu='%d' cpuset='0-8191'/>", i)
	}
	for name, text := range map[string]string{
		"numbers":     head + "<cputune>" + pins.String() + "</cputune></domain>",
		"guest cells": head + "<cpu><numa>" + strings.Repeat("<cell memory='1'/>", 2000) + "</numa></cpu></domain>",
	} {
		d := parsed(t, text)
		if _, err := d.Pinning(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v", name, err)
		}
		if topo, _, remarks := d.Assignment(here16(t), nil); len(remarks) == 0 || topo != nil && len(topo.Cells) > 1024 {
			t.Errorf("%s: remarks %q", name, remarks)
		}
	}
}
