package host_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"berth/agent/host"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// headers are what a qcow2 image on shared storage may name, made by qemu-img: its arguments, and
// the code by which the image is refused; empty where it is taken.
var headers = []struct {
	name, code string
	args       []string
}{
	{"a template", "", []string{"-F", "qcow2", "-b", "/images/template.qcow2"}},
	{"a template beside it", "", []string{"-F", "qcow2", "-b", "template.qcow2"}},
	{"a template by json", "", []string{"-F", "qcow2", "-b", `json:{"driver":"qcow2","file":{"driver":"file","filename":"/images/template.qcow2"}}`}},
	{"raw in the network", "", []string{"-F", "raw", "-b", "nbd://10.0.0.1/x"}},
	{"a file of the host", "path_not_allowed", []string{"-F", "raw", "-b", "/etc/shadow"}},
	{"a disk of the host", "path_not_allowed", []string{"-F", "raw", "-b", "/dev/sda"}},
	{"a file by json", "path_not_allowed", []string{"-F", "raw", "-b", `json:{"driver":"raw","file":{"driver":"file","filename":"/etc/shadow"}}`}},
	{"a file by its protocol", "path_not_allowed", []string{"-F", "raw", "-b", "file:/etc/shadow"}},
	{"a file below a template", "path_not_allowed", []string{"-F", "qcow2", "-b", "/images/evil.qcow2"}},
	{"a link", "path_not_allowed", []string{"-F", "raw", "-b", "/images/link"}},
	{"by way of a link", "image_unread", []string{"-F", "raw", "-b", "/images/link/../shadow"}},
	{"two files by json", "image_unread", []string{"-F", "qcow2", "-b", `json:{"driver":"qcow2","file":{"driver":"file","filename":"/images/template.qcow2"},"backing":{"driver":"file","filename":"/etc/shadow"}}`}},
	{"qcow2 in the network", "image_unread", []string{"-F", "qcow2", "-b", "nbd://10.0.0.1/x"}},
	{"a socket of the host", "image_unread", []string{"-F", "raw", "-b", "nbd+unix:///?socket=/run/x"}},
	{"another instance's disk", "used_by_other", []string{"-F", "raw", "-b", "/images/other.raw"}},
	{"a file that is not there", "image_unread", []string{"-F", "qcow2", "-b", "/images/none.qcow2"}},
	{"a loop", "image_unread", []string{"-F", "qcow2", "-b", "/images/i.qcow2"}},
	{"a data file", "", []string{"-o", "data_file=/images/i.data"}},
	{"a data file of the host", "path_not_allowed", []string{"-o", "data_file=/etc/shadow"}},
	{"a data file in QEMU's folder", "image_unread", []string{"-o", "data_file=etc/shadow"}},
}

const sharedImage = "/images/i.qcow2"

// putHeader gives a host an image with that header, and the files around it.
func (n *node) putHeader(t *testing.T, args ...string) {
	t.Helper()
	n.qemuImg(t, "create", "-q", "-f", "qcow2", n.path("/images/template.qcow2"), "1M")
	n.qemuImg(t, "create", "-q", "-u", "-f", "qcow2", "-F", "raw", "-b", "/etc/shadow", n.path("/images/evil.qcow2"), "1M")
	n.put(t, "/etc/shadow", "secret", 0o600)
	if err := os.Symlink("/etc/shadow", n.path("/images/link")); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	if err := os.RemoveAll(n.path(sharedImage)); err != nil {
		t.Fatal(err)
	}
	if strings.HasPrefix(args[len(args)-1], "data_file=") {
		// qemu-img makes the file that it is told: it is told another one first.
		n.put(t, "/images/i.data", "", 0o600)
		n.qemuImg(t, "create", "-q", "-f", "qcow2", "-o", "data_file="+n.path("/images/i.data"), n.path(sharedImage), "1M")
		text, err := os.ReadFile(n.path(sharedImage))
		if err != nil {
			t.Fatal(err)
		}
		was, is := n.path("/images/i.data"), strings.TrimPrefix(args[len(args)-1], "data_file=")
		n.put(t, sharedImage, renamed(t, string(text), was, is), 0o600)
		return
	}
	n.qemuImg(t, slices.Concat([]string{"create", "-q", "-u", "-f", "qcow2"}, args, []string{n.path(sharedImage), "1M"})...)
}

// renamed writes another name over that of a data file in a header, as an extension of its length.
func renamed(t *testing.T, image, was, is string) string {
	t.Helper()
	at := strings.Index(image, "\x44\x41\x54\x41") // the header extension of a data file's name
	if at < 0 || !strings.HasPrefix(image[at+8:], was) || len(is) > len(was) {
		t.Fatalf("no name %q in the header, at %d", was, at)
	}
	pad := func(s string) string { return s + strings.Repeat("\x00", (8-len(s)%8)%8) }
	rest := image[at+8+len(pad(was)):]
	out := image[:at+4] + string([]byte{0, 0, 0, byte(len(is))}) + pad(is) + rest
	// What follows the extensions begins at the next cluster.
	cut := at + 8 + len(pad(is))
	hole := len(pad(was)) - len(pad(is))
	end := cut + strings.Index(out[cut:], strings.Repeat("\x00", 8+hole))
	return out[:end] + strings.Repeat("\x00", hole) + out[end:]
}

func imagesLab(t *testing.T) (*lab, string) {
	t.Helper()
	requireQemuImg(t)
	l := newLab(t, "a", "b")
	a := l.hosts["a"]
	a.qemuImg(t, "create", "-q", "-f", "qcow2", a.path(sharedImage), "1M")
	l.guest("b", "other", host.CreateDisk{Path: "/images/other.raw", Format: "raw", SizeGB: 1})
	return l, l.guest("a", "vm1", host.CreateDisk{Path: sharedImage, Format: "qcow2"}).UUID
}

// A peer's image names files that its domain XML does not; QEMU would open them.
func TestPrepare_WhatAnImageStandsOnIsHeldAgainstPolicy(t *testing.T) {
	l, id := imagesLab(t)
	c := newCold(t, l, id, nil)
	b := l.hosts["b"]
	for _, tt := range headers {
		for _, kind := range []string{migration.TypeLiveMigration, migration.TypeMigration} {
			t.Run(tt.name+", "+kind, func(t *testing.T) {
				b.putHeader(t, tt.args...)
				ref := c.ref
				ref.Migration = uuid.NewString()
				_, err := operation.Claim.Ask(t.Context(), b, ref, migration.ClaimRequest{Guest: c.guest, Context: c.context(), Kind: kind})
				l.must("claim", err)
				undo := operation.RollbackPreLiveMigration
				if kind == migration.TypeMigration {
					undo = operation.RollbackPrepResize
					_, err = operation.PrepResize.Ask(t.Context(), b, ref, migration.PrepRequest{Kind: kind, Guest: c.guest, Wanted: c.wanted, Source: "a"})
				} else {
					_, err = operation.PreLiveMigration.Ask(t.Context(), b, ref, migration.PreLiveRequest{Guest: c.guest, Source: "a"})
				}
				code := tt.code
				if tt.name == "raw in the network" && kind == migration.TypeLiveMigration {
					code = "image_unread" // the domain XML of an instance that runs names it
				}
				refusedFor(t, err, code)
				l.must("roll back", undo.Ask(t.Context(), b, ref))
				l.must("abort the claim", operation.AbortClaim.Ask(t.Context(), b, ref))
			})
		}
	}
	l.state("a", id, driver.Running)
}

// refusedFor looks for a refusal of that code, each reason with a remedy; for none where it is empty.
func refusedFor(t *testing.T, err error, code string) {
	t.Helper()
	reasons := fault.ReasonsOf(err)
	if code == "" {
		if err != nil {
			t.Errorf("%v, reasons %+v; want none", err, reasons)
		}
		return
	}
	if !errors.Is(err, fault.Forbidden) || !slices.ContainsFunc(reasons, func(r fault.Reason) bool { return r.Code == code && r.Change != "" }) {
		t.Errorf("%v, reasons %+v; want %s", err, reasons, code)
	}
}

// A header that changed after it was admitted does not start, and starts when it is mended.
func TestFinishResize_AHeaderThatChangedSinceIsRefused(t *testing.T) {
	l, id := imagesLab(t)
	c := newCold(t, l, id, nil)
	good := []string{"-F", "qcow2", "-b", "/images/template.qcow2"}
	c.b.putHeader(t, good...)
	c.run(c.there()[1:], "accept handed")
	c.b.putHeader(t, "-F", "raw", "-b", "/etc/shadow")
	refusedFor(t, operation.FinishResize.Ask(t.Context(), c.b, c.ref), "path_not_allowed")
	if _, err := c.b.fake.Domain(t.Context(), id); fault.KindOf(err) != fault.NotFound {
		t.Errorf("the hypervisor has the domain: %v", err)
	}
	c.b.putHeader(t, good...)
	l.must("finish", operation.FinishResize.Ask(t.Context(), c.b, c.ref))
	l.state("b", id, driver.Running)
}

// The dead host's last record names an image whose header it wrote.
func TestPrepEvacuation_WhatAnImageStandsOnIsHeldAgainstPolicy(t *testing.T) {
	requireQemuImg(t)
	e := newEvacuation(t, driver.Running)
	g := &e.request.Guest
	for _, text := range []*string{&g.XML, &g.Definition} {
		*text = strings.ReplaceAll(strings.ReplaceAll(*text, sharedFile, sharedImage), `type="raw"`, `type="qcow2"`)
		*text = strings.ReplaceAll(*text, `type='raw'`, `type='qcow2'`)
	}
	if !strings.Contains(g.Definition, sharedImage) || strings.Contains(g.Definition, "raw") {
		t.Fatalf("the definition was not changed:\n%s", g.Definition)
	}
	e.b.Close()
	e.hosts["b"].files = nil
	e.start()
	for _, tt := range headers {
		t.Run(tt.name, func(t *testing.T) {
			e.b.putHeader(t, tt.args...)
			e.b.put(t, "/images/other.raw", "", 0o600)
			e.ref.Migration = uuid.NewString()
			e.must("claim", e.claim())
			_, err := operation.PrepEvacuation.Ask(t.Context(), e.b, e.ref, e.request)
			got := slices.ContainsFunc(fault.ReasonsOf(err), func(r fault.Reason) bool { return r.Code == tt.code })
			if tt.code == "used_by_other" {
				got = true // this lab's other host has no other instance
			}
			if tt.code != "" && !got {
				t.Errorf("%v, reasons %+v; want %s", err, fault.ReasonsOf(err), tt.code)
			}
			for _, r := range fault.ReasonsOf(err) {
				if tt.code == "" && (r.Code == "path_not_allowed" || r.Code == "image_unread" || r.Code == "used_by_other") {
					t.Errorf("reason %+v", r)
				}
			}
			e.must("roll back", operation.RollbackPrepEvacuation.Ask(t.Context(), e.b, e.ref))
			e.must("abort the claim", operation.AbortClaim.Ask(t.Context(), e.b, e.ref))
		})
	}
}

// What an image stands on is written into the domain XML by which libvirt takes an instance in. A
// header that changes after it was read is not asked for again.
func TestPreLive_TheChainsOfImagesAreClosed(t *testing.T) {
	l, id := imagesLab(t)
	c := newCold(t, l, id, nil)
	b := l.hosts["b"]
	const (
		source   = "<source file='" + sharedImage + "'/>"
		end      = "<backingStore/>"
		template = "<backingStore type='file'><format type='qcow2'/><source file='/images/template.qcow2'/>" + end + "</backingStore>"
		network  = "<backingStore type='network'><format type='raw'/><source protocol='nbd' name='x'><host name='10.0.0.1'/></source>" + end + "</backingStore>"
	)
	flat := func(text string) string {
		return strings.Join(strings.FieldsFunc(strings.ReplaceAll(text, `"`, "'"), func(r rune) bool { return r == '\n' || r == '\t' }), "")
	}
	plain := func(text string) string { return strings.ReplaceAll(flat(text), "  ", "") }
	for _, tt := range []struct {
		name        string
		args        []string
		given, want string // after the source
	}{
		{"nothing below", []string{"-o", "lazy_refcounts=off"}, "", end},
		{"a template", []string{"-F", "qcow2", "-b", "/images/template.qcow2"}, "", template},
		{"a template beside it", []string{"-F", "qcow2", "-b", "template.qcow2"}, "", template},
		{"a template that the domain XML names", []string{"-F", "qcow2", "-b", "/images/template.qcow2"}, strings.Replace(template, end, "", 1), template},
		{"all is said", []string{"-F", "qcow2", "-b", "/images/template.qcow2"}, template, template},
		{"in the network", []string{"-F", "raw", "-b", "nbd://10.0.0.1/x"}, network, network},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b.putHeader(t, tt.args...)
			ref, g := c.ref, c.guest
			ref.Migration = uuid.NewString()
			g.XML = strings.Replace(strings.ReplaceAll(g.XML, `"`, "'"), source, source+tt.given, 1)
			if !strings.Contains(g.XML, source+tt.given) {
				t.Fatalf("the domain XML has no %s:\n%s", source, g.XML)
			}
			_, err := operation.Claim.Ask(t.Context(), b, ref, migration.ClaimRequest{Guest: g, Context: c.context(), Kind: migration.TypeLiveMigration})
			l.must("claim", err)
			got, err := operation.PreLiveMigration.Ask(t.Context(), b, ref, migration.PreLiveRequest{Guest: g, Source: "a"})
			l.must("prepare", err)
			if !strings.Contains(plain(got.DestinationXML), tt.want) || strings.Count(got.DestinationXML, "<backingStore/>") != 1 {
				t.Errorf("libvirt gets\n%s\nwant %s", got.DestinationXML, tt.want)
			}
			if strings.Contains(got.PersistentXML, "backingStore") {
				t.Errorf("the definition has a chain:\n%s", got.PersistentXML)
			}
			// A try that is repeated, and the guard, have the same.
			b.putHeader(t, "-F", "raw", "-b", "/etc/shadow")
			again, err := operation.PreLiveMigration.Ask(t.Context(), b, ref, migration.PreLiveRequest{Guest: g, Source: "a"})
			l.must("prepare again", err)
			guarded, err := b.PreparedXML(id, ref.Migration)
			l.must("ask for it", err)
			if again.DestinationXML != got.DestinationXML || guarded != got.DestinationXML {
				t.Errorf("another domain XML:\n%s\n%s", again.DestinationXML, guarded)
			}
			l.must("roll back", operation.RollbackPreLiveMigration.Ask(t.Context(), b, ref))
			l.must("abort the claim", operation.AbortClaim.Ask(t.Context(), b, ref))
		})
	}
	t.Run("virsh", func(t *testing.T) {
		b.putHeader(t, "-F", "qcow2", "-b", "/images/template.qcow2")
		got, err := b.External().ClaimArrival(t.Context(), c.guest.XML)
		l.must("claim", err)
		if !strings.Contains(plain(got), template) {
			t.Errorf("libvirt gets\n%s\nwant %s", got, template)
		}
	})
}
