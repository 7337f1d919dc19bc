package fileusers

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"berth/agent/host/disks"
	"berth/driver"
	"berth/internal/fault"
)

// TestDecide_EveryCombination enumerates the table: whoever is known to use a file, or to
// have it open, keeps it; a doubt keeps what would be lost, and not what is kept beside.
func TestDecide_EveryCombination(t *testing.T) {
	for _, act := range []Act{Remove, Replace} {
		for bits := range 8 {
			f := facts{Used: bits&1 != 0, Open: bits&2 != 0, Perhaps: bits&4 != 0}
			want := Go
			switch {
			case act == Remove && f != facts{}:
				want = Leave
			case act == Replace && (f.Used || f.Open):
				want = Refuse
			}
			if got := decide(act, f); got != want {
				t.Errorf("%s with %+v: %s, want %s", act, f, got, want)
			}
		}
	}
	if got := decide("rename", facts{}); got != Refuse {
		t.Errorf("an act that no row knows: %s, want %s", got, Refuse)
	}
}

// host is one with definitions, pools and files of its own.
type host struct {
	t       *testing.T
	files   Files
	domains map[string]driver.Domain
	live    map[string]string
	next    map[string]string
	broken  map[string]error // by uuid: its XML cannot be had
	silent  error
	pools   map[string]driver.Pool
	volumes map[string]string
}

func newHost(t *testing.T) *host {
	t.Helper()
	if _, err := exec.LookPath("qemu-img"); err != nil {
		t.Skip("qemu-img is not installed (Debian: qemu-utils)")
	}
	return &host{
		t: t, files: disks.Files{BootID: "boot"}, domains: map[string]driver.Domain{}, live: map[string]string{}, next: map[string]string{},
		broken: map[string]error{}, pools: map[string]driver.Pool{}, volumes: map[string]string{},
	}
}

func (h *host) Domains(context.Context) ([]driver.Domain, error) {
	var out []driver.Domain
	for _, d := range h.domains {
		out = append(out, d)
	}
	return out, h.silent
}

func (h *host) XML(_ context.Context, uuid string, what driver.Document) (string, error) {
	if what == driver.Persistent {
		return h.next[uuid], nil
	}
	return h.live[uuid], h.broken[uuid]
}

func (h *host) Pool(_ context.Context, name string) (driver.Pool, error) {
	if p, ok := h.pools[name]; ok {
		return p, nil
	}
	return driver.Pool{}, fault.New(fault.NotFound, "no pool %s", name)
}

func (h *host) Volume(_ context.Context, pool, name string) (driver.Volume, error) {
	if !h.pools[pool].Active {
		return driver.Volume{}, fault.New(fault.Invalid, "pool %s is not active", pool)
	}
	path, ok := h.volumes[pool+"/"+name]
	if !ok {
		return driver.Volume{}, fault.New(fault.NotFound, "no volume %s", name)
	}
	return driver.Volume{Name: name, Path: path}, nil
}

func (h *host) off(name, devices string) {
	h.domains[name] = driver.Domain{UUID: name, Name: name, State: driver.ShutOff, Persistent: true}
	h.live[name] = document(devices)
}

func document(devices string) string {
	return "<domain type='kvm'><name>x</name><metadata><b:x xmlns:b='urn:b' path='/noted'>/noted</b:x></metadata><devices>" + devices + "</devices></domain>"
}

func diskOf(format, path string) string {
	return "<disk type='file' device='disk'><driver name='qemu' type='" + format + "'/><source file='" + path + "'/><target dev='vda'/></disk>"
}

func volumeDisk(driver, pool, name string) string {
	return "<disk type='volume' device='disk'>" + driver + "<source pool='" + pool + "' volume='" + name + "'/><target dev='vda'/></disk>"
}

func (h *host) image(args ...string) {
	h.t.Helper()
	if out, err := exec.Command("qemu-img", append([]string{"create", "-q"}, args...)...).CombinedOutput(); err != nil {
		h.t.Fatalf("qemu-img create %v: %v\n%s", args, err, out)
	}
}

func (h *host) ask(path, except string) Answer {
	h.t.Helper()
	s, err := Look(h.t.Context(), Sources{Definitions: h, Files: h.files, Pools: func(context.Context) (Pools, error) { return h, nil }})
	if err != nil {
		h.t.Fatal(err)
	}
	a, err := s.Of(path, except)
	if err != nil {
		h.t.Fatal(err)
	}
	return a
}

// TestLook_FindsTheUsersOfATemplate by each way in which a definition leads to a file.
func TestLook_FindsTheUsersOfATemplate(t *testing.T) {
	for name, define := range map[string]func(h *host, dir, template string){
		"disk": func(h *host, _, template string) { h.off("clone", diskOf("qcow2", template)) },
		"linked": func(h *host, dir, template string) {
			must(t, os.Link(template, dir+"/other.qcow2"))
			h.off("clone", diskOf("qcow2", dir+"/other.qcow2"))
		},
		"symbolic link": func(h *host, dir, template string) {
			must(t, os.Symlink(template, dir+"/other.qcow2"))
			h.off("clone", diskOf("qcow2", dir+"/other.qcow2"))
		},
		"overlay": func(h *host, dir, template string) {
			h.image("-f", "qcow2", "-F", "qcow2", "-b", template, dir+"/clone.qcow2")
			h.off("clone", diskOf("qcow2", dir+"/clone.qcow2"))
		},
		"two layers": func(h *host, dir, template string) {
			h.image("-f", "qcow2", "-F", "qcow2", "-b", template, dir+"/middle.qcow2")
			h.image("-f", "qcow2", "-F", "qcow2", "-b", "middle.qcow2", dir+"/clone.qcow2")
			h.off("clone", diskOf("qcow2", dir+"/clone.qcow2"))
		},
		"json": func(h *host, dir, template string) {
			h.image("-u", "-f", "qcow2", "-F", "qcow2", "-b", `json:{"driver":"qcow2","file":{"driver":"file","filename":"`+template+`"}}`, dir+"/clone.qcow2", "1M")
			h.off("clone", diskOf("qcow2", dir+"/clone.qcow2"))
		},
		"file protocol": func(h *host, dir, template string) {
			h.image("-u", "-f", "qcow2", "-F", "qcow2", "-b", "file:"+template, dir+"/clone.qcow2", "1M")
			h.off("clone", diskOf("qcow2", dir+"/clone.qcow2"))
		},
		"data file": func(h *host, dir, template string) {
			h.image("-f", "qcow2", "-o", "data_file="+template, dir+"/clone.qcow2", "1M")
			h.off("owner", diskOf("raw", template)) // it has the data itself now
			h.off("clone", diskOf("qcow2", dir+"/clone.qcow2"))
		},
		"volume": func(h *host, dir, template string) {
			h.pools["images"] = driver.Pool{Name: "images", Active: true, Type: "dir", Path: dir}
			h.volumes["images/x"] = template
			h.off("clone", volumeDisk("<driver name='qemu' type='qcow2'/>", "images", "x"))
		},
		"overlay in a volume": func(h *host, dir, template string) {
			h.image("-f", "qcow2", "-F", "qcow2", "-b", template, dir+"/clone.qcow2")
			h.pools["images"] = driver.Pool{Name: "images", Active: true, Type: "dir", Path: dir}
			h.volumes["images/clone.qcow2"] = dir + "/clone.qcow2"
			h.off("clone", volumeDisk("", "images", "clone.qcow2"))
		},
		"overlay in a volume of a pool that is not active": func(h *host, dir, template string) {
			h.image("-f", "qcow2", "-F", "qcow2", "-b", template, dir+"/clone.qcow2")
			h.pools["images"] = driver.Pool{Name: "images", Type: "dir", Path: dir}
			h.off("clone", volumeDisk("", "images", "clone.qcow2"))
		},
		"only in the next definition": func(h *host, _, template string) {
			h.domains["clone"] = driver.Domain{UUID: "clone", Name: "clone", State: driver.Running, Persistent: true}
			h.live["clone"], h.next["clone"] = document(""), document(diskOf("qcow2", template))
		},
		"told by libvirt": func(h *host, dir, template string) {
			h.domains["clone"] = driver.Domain{UUID: "clone", Name: "clone", State: driver.Running}
			h.live["clone"] = document("<disk type='file'><driver type='qcow2'/><source file='" + dir + "/gone'/><backingStore type='file'><format type='qcow2'/><source file='" +
				template + "'/><backingStore/></backingStore><target dev='vda'/></disk>")
		},
		"firmware variables": func(h *host, _, template string) {
			h.off("clone", "")
			h.live["clone"] = "<domain><os><nvram type='file' format='qcow2'><source file='" + template + "'/></nvram></os></domain>"
		},
		"device of an unknown kind": func(h *host, _, template string) {
			h.off("clone", "<memory model='nvdimm'><source><path>"+template+"</path></source></memory>")
		},
		"process": func(h *host, _, template string) {
			in, err := os.Open(template)
			must(t, err)
			held := exec.Command("sleep", "600")
			held.Stdin = in
			must(t, held.Start())
			t.Cleanup(func() { _, _ = held.Process.Kill(), held.Wait() })
			must(t, in.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, dir := newHost(t), t.TempDir()
			template, free := dir+"/template.qcow2", dir+"/free.qcow2"
			h.image("-f", "qcow2", template, "1M")
			h.image("-f", "qcow2", free, "1M")
			h.off("owner", diskOf("qcow2", template))
			h.off("network", "<disk type='network'><driver type='raw'/><source protocol='rbd' name='p/i'/><target dev='vda'/></disk>")
			if got := h.ask(template, "owner"); got.Verdict(Remove) != Go {
				t.Fatalf("before anybody uses it: %s", got.Why())
			}
			define(h, dir, template)
			got := h.ask(template, "owner")
			if got.Verdict(Remove) != Leave || got.Verdict(Replace) != Refuse || len(got.Perhaps) > 0 {
				t.Errorf("users %+v, open %v, perhaps %v", got.Users, got.Open, got.Perhaps)
			}
			if name != "process" && !strings.Contains(got.Why(), "clone") {
				t.Errorf("it says %q, and does not name the user", got.Why())
			}
			if got := h.ask(free, "nobody"); got.Verdict(Remove) != Go {
				t.Errorf("a file that nobody uses: %s", got.Why())
			}
		})
	}
}

// TestLook_WhatCannotBeResolvedKeepsWhatItCouldBe, and nothing else, and is named.
func TestLook_WhatCannotBeResolvedKeepsWhatItCouldBe(t *testing.T) {
	for name, c := range map[string]struct {
		define func(h *host, dir string)
		want   Doubt // empty: resolved
	}{
		"image that is broken": {func(h *host, dir string) {
			must(t, os.WriteFile(dir+"/broken.qcow2", []byte("QFI\xfb and no more"), 0o600))
			h.off("other", diskOf("qcow2", dir+"/broken.qcow2"))
		}, DoubtChain},
		"raw image, whatever is in it": {func(h *host, dir string) {
			must(t, os.WriteFile(dir+"/x.raw", []byte("QFI\xfb and no more"), 0o600))
			h.off("other", diskOf("raw", dir+"/x.raw"))
		}, ""},
		"broken image of a running domain, of which libvirt tells": {func(h *host, dir string) {
			must(t, os.WriteFile(dir+"/broken.qcow2", []byte("x"), 0o600))
			h.domains["other"] = driver.Domain{UUID: "other", Name: "other", State: driver.Running, Persistent: true}
			h.live["other"] = document("<disk type='file'><driver type='qcow2'/><source file='" + dir + "/broken.qcow2'/><backingStore/><target dev='vda'/></disk>")
			h.next["other"] = document(diskOf("qcow2", dir+"/broken.qcow2"))
		}, ""},
		"image that is gone": {func(h *host, dir string) { h.off("other", diskOf("qcow2", dir+"/gone.qcow2")) }, ""},
		"image of a filesystem that is not mounted": {func(h *host, dir string) {
			must(t, os.Mkdir(dir+"/mnt", 0o755))
			h.off("other", diskOf("qcow2", dir+"/mnt/x.qcow2"))
		}, DoubtChain},
		"definition that cannot be read": {func(h *host, _ string) {
			h.off("other", "")
			h.broken["other"] = fault.New(fault.Internal, "no")
		}, DoubtDefinition},
		"definition that is none": {func(h *host, _ string) { h.off("other", "<"); h.live["other"] = "<domain" }, DoubtDefinition},
		"volume of no pool":       {func(h *host, _ string) { h.off("other", volumeDisk("", "none", "x")) }, DoubtVolume},
		"raw volume of a group that is not active": {func(h *host, _ string) {
			h.pools["vg"] = driver.Pool{Name: "vg", Type: "logical", Path: "/dev/vg"}
			h.off("other", volumeDisk("<driver type='raw'/>", "vg", "x"))
		}, ""},
		"volume of a group that is not active": {func(h *host, _ string) {
			h.pools["vg"] = driver.Pool{Name: "vg", Type: "logical", Path: "/dev/vg"}
			h.off("other", volumeDisk("<driver type='qcow2'/>", "vg", "x"))
		}, DoubtVolume},
		"protocol that nobody knows": {func(h *host, dir string) {
			h.image("-u", "-f", "qcow2", "-F", "raw", "-b", "blkdebug:"+dir+"/x:"+dir+"/y", dir+"/odd.qcow2", "1M")
			h.off("other", diskOf("qcow2", dir+"/odd.qcow2"))
		}, DoubtChain},
		"disk of a type that is not known": {func(h *host, _ string) {
			h.off("other", "<disk type='future'><source thing='x'/><target dev='vda'/></disk>")
		}, DoubtVolume},
		"devices, and what another process serves": {func(h *host, _ string) {
			h.off("other", "<disk type='nvme'><source type='pci' namespace='1'><address domain='0' bus='1' slot='0' function='0'/></source><target dev='vda'/></disk>"+
				"<disk type='vhostuser'><source type='unix' path='/run/s'/><target dev='vdb'/></disk><disk type='vhostvdpa'><source dev='/dev/vhost-vdpa-0'/><target dev='vdc'/></disk>")
		}, ""},
		"image in the network that is not raw": {func(h *host, _ string) {
			h.off("other", "<disk type='network'><driver type='qcow2'/><source protocol='gluster' name='v/i'/><target dev='vda'/></disk>")
		}, DoubtChain},
	} {
		t.Run(name, func(t *testing.T) {
			h, dir := newHost(t), t.TempDir()
			h.image("-f", "qcow2", dir+"/mine.qcow2", "1M")
			c.define(h, dir)
			got := h.ask(dir+"/mine.qcow2", "mine")
			if c.want == "" {
				if got.Verdict(Remove) != Go {
					t.Errorf("it stays: %s", got.Why())
				}
				return
			}
			if got.Verdict(Remove) != Leave || got.Verdict(Replace) != Go || len(got.Perhaps) != 1 || got.Perhaps[0].Doubt != c.want || !strings.Contains(got.Why(), "other") {
				t.Errorf("it says %q: %+v", got.Why(), got.Perhaps)
			}
			if k := got.Kept("vda"); k.Path != dir+"/mine.qcow2" || k.Change == "" {
				t.Errorf("kept %+v", k)
			}
		})
	}
}

// A disk of type dir shows its guest every file of a folder.
func TestLook_AFileInAFolderThatIsADisk_IsUsed(t *testing.T) {
	h, dir := newHost(t), t.TempDir()
	must(t, os.Mkdir(dir+"/shown", 0o755))
	must(t, os.Symlink(dir+"/shown", dir+"/link"))
	h.image("-f", "raw", dir+"/shown/mine.raw", "1M")
	h.image("-f", "raw", dir+"/beside.raw", "1M")
	h.off("other", "<disk type='dir'><source dir='"+dir+"/link'/><target dev='vda'/></disk>")
	for path, want := range map[string]Verdict{"/shown/mine.raw": Leave, "/link/mine.raw": Leave, "/beside.raw": Go} {
		if got := h.ask(dir+path, "mine"); got.Verdict(Remove) != want {
			t.Errorf("%s: %s", path, got.Why())
		}
	}
}

func TestLook_ASilentHypervisorIsAnError(t *testing.T) {
	h := newHost(t)
	sources := Sources{Definitions: h, Files: h.files, Pools: func(context.Context) (Pools, error) { return h, nil }}
	h.off("other", "")
	h.broken["other"] = fault.New(fault.Unavailable, "it hangs")
	if _, err := Look(t.Context(), sources); !errors.Is(err, fault.Unavailable) {
		t.Errorf("a definition was not answered: %v", err)
	}
	h.silent = fault.New(fault.Unavailable, "it hangs")
	if _, err := Look(t.Context(), sources); !errors.Is(err, fault.Unavailable) {
		t.Errorf("the list was not answered: %v", err)
	}
}

// TestLook_AnImageThatHangsDoesNotHold: the rest is answered, and the folder is asked once.
func TestLook_AnImageThatHangsDoesNotHold(t *testing.T) {
	h, dir := newHost(t), t.TempDir()
	tool := filepath.Join(dir, "hangs")
	must(t, os.WriteFile(tool, []byte("#!/bin/sh\nexec sleep 600\n"), 0o755))
	h.files = disks.Files{BootID: "boot", Tool: tool}
	for _, name := range []string{"one", "two"} {
		must(t, os.WriteFile(dir+"/"+name, nil, 0o600))
		h.off(name, diskOf("qcow2", dir+"/"+name))
	}
	asked := 0
	s, err := Look(t.Context(), Sources{Definitions: h, Files: h.files, Pools: func(context.Context) (Pools, error) { return h, nil },
		Bound: func(ctx context.Context) (context.Context, context.CancelFunc) {
			asked++
			return context.WithTimeout(ctx, 0)
		}})
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.Of(tool, "")
	if err != nil || len(a.Perhaps) != 2 || asked != 1 {
		t.Errorf("%v, %v, asked %d times", a.Perhaps, err, asked)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
