package host_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	goruntime "runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/migration/transfer"
)

const (
	disk = "/images/vm1.qcow2"
	base = "/images/base.qcow2"
	root = "/images/root.qcow2"
)

// sparse makes a file of some blocks of a piece's size, with text at places.
func (n *node) sparse(t *testing.T, path string, size int64, at map[int64]string) {
	t.Helper()
	n.put(t, path, "", 0o644)
	file, err := os.OpenFile(n.path(path), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	for offset, text := range at {
		if _, err := file.WriteAt([]byte(text), offset); err != nil {
			t.Fatal(err)
		}
	}
	if err := file.Sync(); err != nil {
		t.Fatal(err)
	}
}

// shipLab has a guest on a with one raw disk: a block with data, a hole, another with
// data and a short end.
func shipLab(t *testing.T) (*lab, *cold) {
	t.Helper()
	requireQemuImg(t)
	l := newLab(t, "a", "b")
	l.hosts["a"].sparse(t, disk, 5*migration.ShipBlock+512, map[int64]string{9: "one", 3*migration.ShipBlock + 77: "two", 5 * migration.ShipBlock: "end"})
	v := l.guest("a", "vm1", host.CreateDisk{Path: disk})
	return l, newCold(t, l, v.UUID, nil)
}

// chained has a guest whose disk stands on a file that stands on another.
func chained(t *testing.T) (*lab, host.InstanceView) {
	t.Helper()
	requireQemuImg(t)
	l := newLab(t, "a", "b")
	a := l.hosts["a"]
	a.qemuImg(t, "create", "-q", "-f", "qcow2", a.path(base), "8M")
	a.qemuImg(t, "create", "-q", "-f", "qcow2", "-b", "base.qcow2", "-F", "qcow2", a.path(root))
	a.qemuImg(t, "create", "-q", "-f", "qcow2", "-b", "root.qcow2", "-F", "qcow2", a.path(disk))
	return l, l.guest("a", "vm1", host.CreateDisk{Path: disk, Format: "qcow2"})
}

func (n *node) qemuImg(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("qemu-img", args...).CombinedOutput(); err != nil {
		t.Fatalf("qemu-img %v: %v\n%s", args, err, out)
	}
}

// pump ships as a conductor does: from where the destination is, one piece after
// another. before is asked before each verb, and ends it with its error.
func (c *cold) pump(before func(verb string) error) error {
	ctx := c.t.Context()
	p, err := operation.PrepResize.Ask(ctx, c.b, c.ref, migration.PrepRequest{Kind: c.kind(), Guest: c.guest, Wanted: c.wanted, CopyDisks: c.copies, Source: "a"})
	if err != nil {
		return err
	}
	if err := before("ShippedSoFar"); err != nil {
		return err
	}
	far, err := operation.ShippedSoFar.Ask(ctx, c.b, c.ref)
	if err != nil {
		return err
	}
	var want migration.Shipped
	for i, f := range p.Files {
		sum, err := migration.ParseShipSum(far.Files[i].Sum)
		if err != nil {
			return err
		}
		order := transfer.Order{Bytes: far.Files[i].Bytes, Sum: sum}
		for {
			if err := before("ReadDisk"); err != nil {
				return err
			}
			piece, err := operation.ReadDisk.Ask(ctx, c.a, c.ref, migration.DiskRange{Path: f.Path, Offset: order.Bytes, Length: migration.ShipRun, SumOnly: f.Compare})
			if err != nil {
				return err
			}
			if piece.Length == 0 {
				want.Files = append(want.Files, migration.ShippedFile{Path: f.Path, Bytes: order.Bytes, Sum: order.Sum.String(), Version: piece.Version})
				break
			}
			if err := before("WriteDisk"); err != nil {
				return err
			}
			if err := operation.WriteDisk.Ask(ctx, c.b, c.ref, piece); err != nil {
				return err
			}
			if err := order.Take(piece); err != nil {
				return err
			}
		}
	}
	if err := before("SealDisks"); err != nil {
		return err
	}
	return operation.SealDisks.Ask(ctx, c.b, c.ref, want)
}

func anyVerb(string) error { return nil }

// arrived checks that the destination has the same file as the source, with its holes.
func (c *cold) arrived(path string) {
	c.t.Helper()
	want, err := os.ReadFile(c.a.path(path))
	c.must("read the source's file", err)
	got, err := os.ReadFile(c.b.path(path))
	c.must("read the destination's file", err)
	if !bytes.Equal(want, got) {
		c.t.Errorf("%s is another file at its destination", path)
	}
	var here, there syscall.Stat_t
	c.must("stat", errors.Join(syscall.Stat(c.a.path(path), &here), syscall.Stat(c.b.path(path), &there)))
	if there.Blocks > here.Blocks {
		c.t.Errorf("%s occupies %d blocks at its destination, %d at its source", path, there.Blocks, here.Blocks)
	}
}

// TestShip_ResumesWhateverDies kills an agent before every verb of the shipping, or both,
// or the conductor: the files come whole, and what is undone leaves nothing.
func TestShip_ResumesWhateverDies(t *testing.T) {
	cut := errors.New("the conductor is dead")
	for name, dies := range map[string]func(l *lab, c *cold) error{
		"nobody":      func(*lab, *cold) error { return nil },
		"source":      func(l *lab, c *cold) error { c.a = l.restart("a"); return nil },
		"destination": func(l *lab, c *cold) error { c.b = l.restart("b"); return cut },
		"conductor":   func(*lab, *cold) error { return cut },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, c := shipLab(t)
			before := l.picture()
			c.run(c.there(), "power off")
			killed, verbs := -1, 0
			for tries := 0; ; tries++ {
				verbs = -1
				err := c.pump(func(string) error {
					if verbs++; verbs <= killed {
						return nil
					}
					killed = verbs
					return dies(l, c)
				})
				if err == nil {
					break
				}
				if !errors.Is(err, cut) || tries > 40 {
					t.Fatalf("try %d: %v", tries, err)
				}
			}
			c.arrived(disk)
			l.must("once more", c.pump(anyVerb))
			if name == "nobody" {
				l.must("roll back", operation.RollbackPrepResize.Ask(t.Context(), c.b, c.ref))
				l.must("power on", operation.PowerOn.Ask(t.Context(), c.a, c.ref))
				l.must("drop", errors.Join(operation.DropContext.Ask(t.Context(), c.a, c.ref), operation.AbortClaim.Ask(t.Context(), c.b, c.ref)))
				l.same("left behind", before)
				return
			}
			for _, s := range c.there()[6:] {
				// The files of an agent that died close with its process. Here the collector closes them.
				err := s.do()
				for tries := 0; err != nil && strings.Contains(err.Error(), "open for writing by host.test") && tries < 100; tries++ {
					goruntime.GC()
					err = s.do()
				}
				l.must(s.name, err)
			}
			c.lives(c.b, driver.Running, small, 2)
			c.run(c.confirm(), "")
			if _, err := os.Stat(c.a.path(disk)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the source's file after the confirmation: %v", err)
			}
		})
	}
}

// TestShip_RefusesAFileThatChanges sees a write between two pieces, and one after the
// last.
func TestShip_RefusesAFileThatChanges(t *testing.T) {
	for _, at := range []string{"WriteDisk", "SealDisks"} {
		l, c := shipLab(t)
		c.run(c.there(), "power off")
		pieces := 0
		err := c.pump(func(verb string) error {
			if pieces++; pieces > 3 && verb == at {
				pieces = -100
				c.a.sparse(t, disk, 5*migration.ShipBlock+512, map[int64]string{4 * migration.ShipBlock: "somebody"})
			}
			return nil
		})
		if at == "SealDisks" {
			// Its source is asked once more by the conductor, and so is told here.
			p, readErr := operation.ReadDisk.Ask(t.Context(), c.a, c.ref, migration.DiskRange{Path: disk})
			l.must("look again", readErr)
			far, farErr := operation.ShippedSoFar.Ask(t.Context(), c.b, c.ref)
			l.must("ask how far it is", farErr)
			if p.Version == far.Files[0].Version {
				t.Error("a file that was written to is of the same version")
			}
			continue
		}
		l.wantKind("a write at "+at, err, fault.Forbidden)
		if !slices.Contains(codes(err), "disk_changed") {
			t.Errorf("a write at %s: %v", at, err)
		}
	}
}

// TestShip_ReadsOnlyWhatIsTheGuests and only while it is off by this attempt.
func TestShip_ReadsOnlyWhatIsTheGuests(t *testing.T) {
	l, c := shipLab(t)
	ctx := t.Context()
	read := func(path string, ref migration.Ref) error {
		_, err := operation.ReadDisk.Ask(ctx, c.a, ref, migration.DiskRange{Path: path, Length: migration.ShipRun})
		return err
	}
	l.wantKind("while it runs", read(disk, c.ref), fault.Forbidden)
	c.run(c.there(), "power off")
	l.must("when it is off", read(disk, c.ref))
	l.wantKind("by another attempt", read(disk, c.back), fault.Forbidden)
	for _, path := range []string{"/boot/vmlinuz", "/images/../images/vm1.qcow2", "/etc/shadow", "", "vm1.qcow2"} {
		l.wantKind(path, read(path, c.ref), fault.Forbidden)
	}
	l.must("start it again", c.a.fake.Start(ctx, c.ref.Instance, false))
	l.wantKind("when it runs again", read(disk, c.ref), fault.Forbidden)
	l.must("end it", c.a.fake.Destroy(ctx, c.ref.Instance))
	l.must("power on", operation.PowerOn.Ask(ctx, c.a, c.ref))
	l.wantKind("after the undo", read(disk, c.ref), fault.Forbidden)
}

// TestShip_BackingChain brings what stands below a disk too, where it is not there yet.
func TestShip_BackingChain(t *testing.T) {
	for _, tt := range []struct {
		name  string
		there func(t *testing.T, l *lab) // what the destination has before
		files []string                   // that are shipped or compared, in order
		code  string                     // by which it is refused; empty for none
		late  bool                       // the refusal comes with a piece
		left  []string                   // at the destination when all is undone
	}{
		{"none of it", func(*testing.T, *lab) {}, []string{base, root, disk}, "", false, nil},
		{"the same base", func(t *testing.T, l *lab) { l.copy(t, base) }, []string{base + " compared", root, disk}, "", false, []string{base}},
		{"another base of the same size", func(t *testing.T, l *lab) {
			l.copy(t, base)
			text, err := os.ReadFile(l.hosts["b"].path(base))
			l.must("read it", err)
			text[len(text)-1] ^= 1
			l.hosts["b"].put(t, base, string(text), 0o644)
		}, []string{base + " compared", root, disk}, "backing_file_differs", true, []string{base}},
		{"another base", func(t *testing.T, l *lab) { l.hosts["b"].put(t, base, "x", 0o644) }, nil, "backing_file_differs", false, []string{base}},
		{"a folder", func(t *testing.T, l *lab) { l.must("make it", os.Mkdir(l.hosts["b"].path(base), 0o755)) }, nil, "backing_file_differs", false, []string{base}},
		{"a base that is a guest's own disk", func(t *testing.T, l *lab) {
			l.copy(t, base)
			l.guest("b", "other", host.CreateDisk{Path: base, Format: "qcow2"})
		}, nil, "backing_file_in_use", false, []string{base}},
		{"a base that is a guest's own disk by a link", func(t *testing.T, l *lab) {
			l.copy(t, base)
			l.must("link it", os.Symlink("base.qcow2", l.hosts["b"].path("/images/own.qcow2")))
			l.guest("b", "other", host.CreateDisk{Path: "/images/own.qcow2", Format: "qcow2"})
		}, nil, "backing_file_in_use", false, []string{base, "/images/own.qcow2"}},
		{"a disk in the way", func(t *testing.T, l *lab) { l.hosts["b"].put(t, disk, "x", 0o644) }, nil, "disk_exists", false, []string{disk}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l, v := chained(t)
			tt.there(t, l)
			c := newCold(t, l, v.UUID, nil)
			err := c.check()
			if tt.code != "" && !tt.late {
				if !slices.Equal(codes(err), []string{tt.code}) {
					t.Errorf("refused by %v, want %s", err, tt.code)
				}
				c.copies = []string{"vda"}
				c.run(c.there()[1:], "record context")
				_, err = operation.PrepResize.Ask(t.Context(), c.b, c.ref, migration.PrepRequest{Kind: c.kind(), Guest: c.guest, Wanted: c.wanted, CopyDisks: c.copies, Source: "a"})
				if !slices.Equal(codes(err), []string{tt.code}) {
					t.Errorf("prepared with %v, want %s", err, tt.code)
				}
			} else {
				l.must("check", err)
				c.run(c.there(), "power off")
				p, err := operation.PrepResize.Ask(t.Context(), c.b, c.ref, migration.PrepRequest{})
				l.must("ask again", err)
				var got []string
				for _, f := range p.Files {
					got = append(got, f.Path+map[bool]string{true: " compared"}[f.Compare])
				}
				if diff := cmp.Diff(tt.files, got); diff != "" {
					t.Errorf("files (-want +got):\n%s", diff)
				}
				err = c.pump(anyVerb)
				if tt.late {
					if !slices.Equal(codes(err), []string{tt.code}) || !strings.Contains(err.Error(), base) {
						t.Errorf("shipped with %v, want %s", err, tt.code)
					}
				} else {
					l.must("ship", err)
					for _, path := range []string{base, root, disk} {
						c.arrived(path)
					}
					c.b.qemuImg(t, "compare", c.a.path(disk), c.b.path(disk))
				}
			}
			l.must("undo", operation.RollbackPrepResize.Ask(t.Context(), c.b, c.ref))
			want := append([]string{"/images"}, tt.left...)
			if diff := cmp.Diff(want, l.picture()["b files"]); diff != "" {
				t.Errorf("left at the destination (-want +got):\n%s", diff)
			}
		})
	}
}

// copy gives b a file of a's.
func (l *lab) copy(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(l.hosts["a"].path(path))
	l.must("read "+path, err)
	l.hosts["b"].put(t, path, string(text), 0o644)
}

// TestShip_BackingFileStaysForOthers undoes a move when another guest stands on a file
// that it brought.
func TestShip_BackingFileStaysForOthers(t *testing.T) {
	l, v := chained(t)
	c := newCold(t, l, v.UUID, nil)
	c.run(c.there(), "power off")
	l.must("ship", c.pump(anyVerb))
	c.b.qemuImg(t, "create", "-q", "-f", "qcow2", "-b", "base.qcow2", "-F", "qcow2", c.b.path("/images/other.qcow2"))
	l.guest("b", "other", host.CreateDisk{Path: "/images/other.qcow2", Format: "qcow2"})
	l.must("undo", operation.RollbackPrepResize.Ask(t.Context(), c.b, c.ref))
	want := []string{"/images", base, "/images/other.qcow2"}
	if diff := cmp.Diff(want, l.picture()["b files"]); diff != "" {
		t.Errorf("left at the destination (-want +got):\n%s", diff)
	}
}

// TestShip_TwoBringOneBackingFile at the same time: the second finds it in its place, and
// that it is the same.
func TestShip_TwoBringOneBackingFile(t *testing.T) {
	l, v := chained(t)
	c := newCold(t, l, v.UUID, nil)
	c.run(c.there(), "power off")
	l.must("ship", c.pump(func(verb string) error {
		if verb == "SealDisks" {
			l.copy(t, base)
		}
		return nil
	}))
	l.must("undo", operation.RollbackPrepResize.Ask(t.Context(), c.b, c.ref))
	if diff := cmp.Diff([]string{"/images", base}, l.picture()["b files"]); diff != "" {
		t.Errorf("left at the destination (-want +got):\n%s", diff)
	}
}

// TestShip_WhatTheDestinationWouldNotStartIsRefusedAtOnce: an overlay is on its source alone before it
// is shipped, and its template on both hosts, in a folder that the destination allows nobody.
func TestShip_WhatTheDestinationWouldNotStartIsRefusedAtOnce(t *testing.T) {
	const template = "/srv/templates/t.qcow2"
	requireQemuImg(t)
	for _, tt := range []struct {
		name, backing, code, says string
		here                      bool // the source refuses it
	}{
		{"a template in a folder of its own", template, "path_not_allowed", `"/srv/templates"`, false},
		{"qcow2 in the network", "nbd://10.0.0.1/x", "image_unread", "qemu-img rebase", true},
		{"raw in the network", "nbd://10.0.0.1/x", "", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, "a", "b")
			a := l.hosts["a"]
			l.must("make the folder", os.MkdirAll(a.path("/srv/templates"), 0o755))
			a.qemuImg(t, "create", "-q", "-f", "qcow2", a.path(template), "8M")
			l.must("make the folder", os.MkdirAll(l.hosts["b"].path("/srv/templates"), 0o755))
			l.copy(t, template)
			format := "qcow2"
			if strings.HasPrefix(tt.name, "raw") {
				format = "raw"
			}
			a.qemuImg(t, "create", "-q", "-f", "qcow2", a.path(disk), "8M")
			v := l.guest("a", "vm1", host.CreateDisk{Path: disk, Format: "qcow2"})
			a.qemuImg(t, "create", "-q", "-u", "-f", "qcow2", "-b", tt.backing, "-F", format, a.path(disk), "8M")
			c := newCold(t, l, v.UUID, nil)
			err := c.check()
			refusedFor(t, err, tt.code)
			if tt.code != "" && !strings.Contains(fault.ReasonsOf(err)[0].Change, tt.says) {
				t.Errorf("reasons %+v, want %s to type", fault.ReasonsOf(err), tt.says)
			}
			if tt.here || tt.code == "" {
				return
			}
			c.copies = []string{"vda"}
			c.run(c.there()[1:], "record context")
			_, err = operation.PrepResize.Ask(t.Context(), c.b, c.ref, migration.PrepRequest{Kind: c.kind(), Guest: c.guest, Wanted: c.wanted, CopyDisks: c.copies, Source: "a"})
			refusedFor(t, err, tt.code)
			l.state("a", v.UUID, driver.Running)
		})
	}
}

// TestShip_AHeaderThatNamesMoreThanItsHostTold: a source that says nothing of what is below
// its disk would have this host's own file of that name read into the instance.
func TestShip_AHeaderThatNamesMoreThanItsHostTold(t *testing.T) {
	l, v := chained(t)
	l.copy(t, base)
	l.copy(t, root)
	c := newCold(t, l, v.UUID, nil)
	for i := range c.guest.Disks {
		c.guest.Disks[i].Chain, c.guest.Disks[i].BackingFile = nil, ""
	}
	c.run(c.there(), "power off")
	err := c.pump(func(string) error { return nil })
	if got := codes(err); !slices.Equal(got, []string{"backing_file_unexpected"}) {
		t.Fatalf("sealed: %v", err)
	}
	if _, err := os.Stat(l.hosts["b"].path(disk)); err == nil {
		t.Error("the disk has its place")
	}
}

// TestShip_AFormatThatIsNotTheDefinitions: looked at as raw, nothing would be seen of what
// QEMU opens as qcow2.
func TestShip_AFormatThatIsNotTheDefinitions(t *testing.T) {
	l, v := chained(t)
	c := newCold(t, l, v.UUID, nil)
	for i := range c.guest.Disks {
		c.guest.Disks[i].Chain, c.guest.Disks[i].BackingFile, c.guest.Disks[i].Format = nil, "", "raw"
	}
	c.run(c.there(), "record context")
	_, err := operation.PrepResize.Ask(t.Context(), c.b, c.ref, migration.PrepRequest{Kind: c.kind(), Guest: c.guest, Wanted: c.wanted, CopyDisks: c.copies, Source: "a"})
	l.wantKind("prepare", err, fault.Invalid)
}
