package admission

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"berth/agent/host/disks"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
)

// What stands below a disk may be another instance's disk only where that one is off, and the
// operator has allowed the file.
func TestCheckImages_TemplatesOfOtherInstances(t *testing.T) {
	overlay := disk("type='file'", "file='"+images+"i.qcow2'")
	overlay = strings.Replace(overlay, "<source", "<driver type='qcow2'/><source", 1)
	for _, tt := range []struct {
		name, below, want string
		off               bool
		allowed           []string
	}{
		{"nobody's", images + "template.qcow2", "", true, nil},
		{"of one that is off", images + "other.qcow2", "used_by_other", true, nil},
		{"of one that is off, allowed", images + "other.qcow2", "", true, []string{images + "other.qcow2"}},
		{"of one that runs, allowed", images + "other.qcow2", "used_by_other", false, []string{images}},
		{"outside", "/srv/t/template.qcow2", "path_not_allowed", true, nil},
		{"outside, allowed", "/srv/t/template.qcow2", "", true, []string{"/srv/t"}},
		{"the log of one that is off", "/var/log/libvirt/qemu/other.log", "path_not_allowed used_by_other", true, nil},
	} {
		for _, form := range []string{"header", "domain XML"} {
			t.Run(tt.name+", "+form, func(t *testing.T) {
				p, text := policy(), overlay
				p.Allowed.Paths = tt.allowed
				p.Layer = func(path, format string) (disks.Layer, error) {
					if path == images+"i.qcow2" && format == "qcow2" && form == "header" {
						return disks.Layer{Below: tt.below, Format: "raw"}, nil
					}
					return disks.Layer{}, nil
				}
				if form == "domain XML" {
					text = strings.Replace(text, "<target", "<backingStore type='file'><format type='raw'/><source file='"+tt.below+"'/></backingStore><target", 1)
				}
				other := Other{Name: "other", XML: domain(neighbor, "", disk("type='file'", "file='"+images+"other.qcow2'")), Off: tt.off}
				if got := strings.Join(codes(t, p, Claimed{AnyAmount: true}, domain(instance, "", text), other), " "); got != tt.want {
					t.Errorf("got %q, want %q", got, tt.want)
				}
			})
		}
	}
}

// Nothing is opened that was not allowed before, and no chain is followed for ever.
func TestCheckImages_OpensWhatIsAllowed(t *testing.T) {
	var opened []string
	p := policy()
	deep := false
	p.Layer = func(path, _ string) (disks.Layer, error) {
		if opened = append(opened, path); deep {
			return disks.Layer{Below: path + "x", Format: "qcow2"}, nil
		}
		return disks.Layer{Below: "/dev/watchdog", Format: "qcow2"}, nil
	}
	p.Volume = func(string, string) (string, bool, error) { return "", false, errors.New("no pool") }
	run := func(devices, os string) []fault.Reason {
		doc, err := domainxml.Parse(domain(instance, os, devices))
		if err != nil {
			t.Fatal(err)
		}
		opened = nil
		return CheckImages(doc, p, nil)
	}
	qcow2 := func(attributes, source string) string {
		return "<disk " + attributes + "><driver type='qcow2'/><source " + source + "/><target dev='vda'/></disk>"
	}
	for name, tt := range map[string]struct{ devices, os, code, opened string }{
		"a disk outside":          {qcow2("type='file'", "file='/etc/x'"), "", "path_not_allowed", ""},
		"below a disk":            {qcow2("type='file'", "file='"+images+"i'"), "", "path_not_allowed", images + "i"},
		"raw":                     {disk("type='file'", "file='"+images+"i'"), "", "", ""},
		"in the network":          {qcow2("type='network'", "protocol='nbd' name='x'"), "", "image_unread", ""},
		"raw in the network":      {disk("type='network'", "protocol='nbd' name='x'"), "", "", ""},
		"a pool that is not here": {qcow2("type='volume'", "pool='p' volume='v'"), "", "", ""},
		"firmware variables":      {"", "<os><type>hvm</type><nvram format='qcow2'>" + images + "vars</nvram></os>", "path_not_allowed", images + "vars"},
		"a mirror": {"<disk type='file'><source file='" + images + "i'/><mirror type='file'><format type='qcow2'/><source file='" + images + "m'/></mirror><target dev='vda'/></disk>", "",
			"path_not_allowed", images + "m"},
		"a slice": {"<disk type='file'><driver type='qcow2'/><source file='" + images + "i'><slices><slice type='storage' offset='512' size='1024'/></slices></source><target dev='vda'/></disk>", "",
			"image_unread", ""},
		"two formats": {"<disk type='file'><driver type='raw'/><driver type='qcow2'/><source file='" + images + "i'/><target dev='vda'/></disk>", "", "path_not_allowed", images + "i"},
	} {
		reasons := run(tt.devices, tt.os)
		var got []string
		for _, r := range reasons {
			got = append(got, r.Code)
		}
		if strings.Join(got, " ") != tt.code || strings.Join(opened, " ") != tt.opened {
			t.Errorf("%s: %v, opened %v; want %s, %s", name, reasons, opened, tt.code, tt.opened)
		}
	}
	deep = true
	reasons := run(qcow2("type='file'", "file='"+images+"i'"), "")
	if len(opened) > deepest || !slices.ContainsFunc(reasons, func(r fault.Reason) bool { return r.Code == "image_unread" }) {
		t.Errorf("%d opened, %v", len(opened), reasons)
	}
}

// Close writes what was read: each chain to its end, block devices as such, and no chain of formats
// that have none.
func TestClose_WritesWhatWasRead(t *testing.T) {
	p := policy()
	p.Allowed.Paths = []string{"/dev/vg0"}
	p.Resolve = nil
	p.Layer = func(path, format string) (disks.Layer, error) {
		switch path {
		case images + "i.qcow2":
			return disks.Layer{Below: "/dev/vg0/t", Format: "qcow2"}, nil
		case "/dev/vg0/t":
			return disks.Layer{Below: images + "raw"}, nil
		case images + "new":
			return disks.Layer{}, fault.New(fault.NotFound, "none")
		case images + "raw.qcow2":
			return disks.Layer{}, disks.ErrOtherFormat
		}
		return disks.Layer{}, nil
	}
	closed := "<backingStore type='block'><format type='qcow2'/><source dev='/dev/vg0/t'/><backingStore type='file'><format type='raw'/><source file='" + images + "raw'/><backingStore/></backingStore></backingStore>"
	for _, tt := range []struct {
		name, devices, code, want string
		created                   bool
	}{
		{"a chain", disk("type='file'", "file='"+images+"i.qcow2'"), "", closed, false},
		{"a file that libvirt makes", disk("type='file'", "file='"+images+"new'"), "", "<backingStore/>", true},
		{"a file that nobody makes", disk("type='file'", "file='"+images+"new'"), "image_unread", "", false},
		{"a file of another format", disk("type='file'", "file='"+images+"raw.qcow2'"), "", "<backingStore/>", false},
		{"two sources", disk("type='file'", "file='"+images+"a'/><source file='"+images+"b'"), "image_unread", "", false},
		{"a CD", strings.Replace(disk("type='file' device='cdrom'", "file='"+images+"cd.iso'"), "<driver type='qcow2'/>", "<driver type='raw'/>", 1), "", "", false},
		{"a network disk", "<disk type='network'><driver type='raw'/><source protocol='rbd' name='p/x'/><target dev='vda'/></disk>", "", "", false},
		{"an empty drive", "<disk type='file' device='cdrom'><driver type='qcow2'/><target dev='sda'/></disk>", "", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := tt.devices
			if !strings.Contains(text, "<driver") {
				text = strings.Replace(text, "<source", "<driver type='qcow2'/><source", 1)
			}
			if tt.name == "a CD" {
				text = strings.Replace(text, "qcow2", "raw", 1)
			}
			doc, err := domainxml.Parse(domain(instance, "", text))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, r := range Close(doc, p, nil, tt.created) {
				if !slices.Contains(got, r.Code) {
					got = append(got, r.Code)
				}
			}
			out := strings.NewReplacer("\n", "", "  ", "").Replace(doc.String())
			if strings.Join(got, " ") != tt.code || tt.code == "" && (!strings.Contains(out, tt.want) || tt.want == "" && strings.Contains(out, "backingStore")) {
				t.Errorf("reasons %v, want %q\n%s\nwant %s", got, tt.code, out, tt.want)
			}
		})
	}
}

// To be off makes no disk a template: a victim's disk is off, too. The one line of configuration that
// the refusal gives admits the instance, with whatever else it names outside; and its other remedy
// names the instance and its disk.
func TestCheckImages_TheRemedyForATemplateAdmits(t *testing.T) {
	p := policy()
	p.Layer = func(path, _ string) (disks.Layer, error) {
		if path == "/srv/o/i.qcow2" {
			return disks.Layer{Below: images + "other.qcow2", Format: "raw"}, nil
		}
		return disks.Layer{}, nil
	}
	text := domain(instance, "", strings.Replace(disk("type='file'", "file='/srv/o/i.qcow2'"), "<source", "<driver type='qcow2'/><source", 1))
	doc, err := domainxml.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	others := []Other{{Name: "other", XML: domain(neighbor, "", disk("type='file'", "file='"+images+"other.qcow2'")), Off: true}}
	for range 2 { // the chain is read once its top is allowed
		var last string
		for _, r := range Check(doc, p, Claimed{AnyAmount: true}, others) {
			_, list, _ := strings.Cut(r.Change, "say allowed_paths = ")
			list, _, ok := strings.Cut(list, " in [migration]")
			if !ok || last != "" && list != last {
				t.Fatalf("reason %+v: no line of configuration, or another than %s", r, last)
			}
			if last = list; r.Code == "used_by_other" && !strings.Contains(r.Change, "virsh blockpull i vda --wait") {
				t.Errorf("remedy %q", r.Change)
			}
		}
		p.Allowed.Paths = nil
		for _, path := range strings.Split(strings.Trim(last, "[]"), ", ") {
			p.Allowed.Paths = append(p.Allowed.Paths, strings.Trim(path, `"`))
		}
	}
	if got := codes(t, p, Claimed{AnyAmount: true}, text, others...); len(got) > 0 {
		t.Errorf("with %v: %v", p.Allowed.Paths, got)
	}
}
