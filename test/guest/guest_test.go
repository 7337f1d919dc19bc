package guest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"libvirt.org/go/libvirtxml"
)

const bootA, bootB = "0123456789abcdef", "fedcba9876543210"

// run makes the beats from first to last of one boot.
func run(boot string, first, last uint64) []Beat {
	var out []Beat
	for n := first; n <= last; n++ {
		out = append(out, Beat{Boot: boot, N: n, Uptime: float64(n) / 4, Passes: n / 4, MiB: 2 * n, Blocks: n})
	}
	return out
}

func TestParseConsole_TakesWholeBeatsOnly(t *testing.T) {
	console := "\x1bc[    0.000000] Linux version\r\nguest ready: boot=" + bootA + " dirty=16MiB\r\n" +
		"hb boot=" + bootA + " n=1 up=1.50 passes=2 mib=30 bad=4 diskbad=5 blocks=6\r\n" +
		"[    3.1] random: crng init done hb boot=" + bootA + " n=2 up=1.75 passes=2 mib=31 bad=0 diskbad=0 blocks=7\r\n" +
		"0 up=9.9 passes=2 mib=31 bad=0 diskbad=0 blocks=8\r\n" +
		"hb boot=" + bootA + " n=x up=1.75 passes=2 mib=31 bad=0 diskbad=0 blocks=7\r\n" +
		"hb boot=" + bootA + " n=3 n=3 up=1.75 passes=2 mib=31 bad=0 diskbad=0\r\n" +
		"hb boot=" + bootA + " n=3 up=2.0"
	got, err := ParseConsole(strings.NewReader(console))
	if err != nil {
		t.Fatal(err)
	}
	want := []Beat{
		{Boot: bootA, N: 1, Uptime: 1.5, Passes: 2, MiB: 30, Bad: 4, DiskBad: 5, Blocks: 6},
		{Boot: bootA, N: 2, Uptime: 1.75, Passes: 2, MiB: 31, Blocks: 7},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("beats (-want +got):\n%s", d)
	}
}

func TestParseBoots_TellsWhatEachBootFound(t *testing.T) {
	console := "guest ready: boot=" + bootA + " dirty=16MiB rate=8MiB/s disk=1024blocks cpus=1 memory=103MiB vda=32MiB before=none kept=0 lost=0 up=1.20\r\n" +
		"hb boot=" + bootA + " n=1 up=1.50 passes=2 mib=30 bad=4 diskbad=5 blocks=6\r\n" +
		"guest ready: boot=" + bootA[:4] + " dirty=16MiB rate=8MiB/s\r\n" +
		"guest ready: boot=" + bootB + " dirty=16MiB rate=8MiB/s disk=1024blocks cpus=2 memory=230MiB vda=64MiB before=" + bootA + " kept=7 lost=1 up=1.20"
	got, err := ParseBoots(strings.NewReader(console))
	if err != nil {
		t.Fatal(err)
	}
	want := []Boot{
		{ID: bootA, CPUs: 1, MemoryMiB: 103, DiskMiB: 32},
		{ID: bootB, CPUs: 2, MemoryMiB: 230, DiskMiB: 64, Before: bootA, Kept: 7, Lost: 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("boots (-want +got):\n%s", diff)
	}
}

func TestContinuity_SeesEveryKindOfLoss(t *testing.T) {
	edit := func(beats []Beat, i int, change func(*Beat)) []Beat { change(&beats[i]); return beats }
	for name, tc := range map[string]struct {
		source, destination []Beat
		wrong               string // empty: it ran through
		torn                int
	}{
		"whole":                  {source: run(bootA, 1, 10), destination: run(bootA, 11, 20)},
		"line torn":              {source: run(bootA, 1, 10), destination: run(bootA, 12, 20), torn: 1},
		"beats lost":             {source: run(bootA, 1, 10), destination: run(bootA, 13, 20), wrong: "2 heartbeats missing between 10 and 13"},
		"beat lost before":       {source: append(run(bootA, 1, 5), run(bootA, 7, 10)...), destination: run(bootA, 11, 20), wrong: "source: 1 heartbeats missing"},
		"beat lost after":        {source: run(bootA, 1, 10), destination: append(run(bootA, 11, 15), run(bootA, 17, 20)...), wrong: "destination: 1 heartbeats missing"},
		"two copies ran":         {source: run(bootA, 1, 12), destination: run(bootA, 11, 20), wrong: "heartbeat 11 after 12"},
		"same beat twice":        {source: run(bootA, 1, 10), destination: run(bootA, 10, 20), wrong: "heartbeat 10 after 10"},
		"rebooted":               {source: run(bootA, 1, 10), destination: run(bootB, 1, 10), wrong: "rebooted"},
		"rebooted, same counter": {source: run(bootA, 1, 10), destination: run(bootB, 11, 20), wrong: "rebooted"},
		"memory":                 {source: run(bootA, 1, 10), destination: edit(run(bootA, 11, 20), 5, func(b *Beat) { b.Bad = 3 }), wrong: "3 bad memory pages"},
		"disk":                   {source: run(bootA, 1, 10), destination: edit(run(bootA, 11, 20), 9, func(b *Beat) { b.DiskBad = 1 }), wrong: "1 bad disk blocks"},
		"clock":                  {source: run(bootA, 1, 10), destination: edit(run(bootA, 11, 20), 0, func(b *Beat) { b.Uptime = 1 }), wrong: "clock went back"},
		"silent destination":     {source: run(bootA, 1, 10), wrong: "0 on the destination"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := Continuity(tc.source, tc.destination)
			if tc.wrong == "" {
				if err != nil || p.Torn != tc.torn || p.First != 1 || p.Last != 20 {
					t.Errorf("proof %+v, %v", p, err)
				}
			} else if err == nil || !strings.Contains(err.Error(), tc.wrong) {
				t.Errorf("error %v; want %q", err, tc.wrong)
			}
		})
	}
	if _, err := Healthy(append(run(bootA, 1, 1), run(bootA, 3, 5)...)); err == nil {
		t.Error("a missing heartbeat on one host passed for healthy")
	}
	if p, err := Healthy(run(bootA, 3, 9)); err != nil || p.Source != 7 {
		t.Errorf("healthy: %+v, %v", p, err)
	}
}

func TestDomainXML_ParsesAndEscapes(t *testing.T) {
	text := DomainXML(Options{
		Name: "g1", Guest: Guest{Kernel: "/k/vm<linuz", Initrd: "/k/initrd"}, Disks: []Disk{{Path: "/d/a'b.qcow2"}, {Path: "/d/2", Format: "raw", Cache: "none"}},
		Metadata: "<x:y xmlns:x='urn:x'/>", Rate: -1,
	})
	var d libvirtxml.Domain
	if err := d.Unmarshal(text); err != nil {
		t.Fatal(err)
	}
	if d.OS.Kernel != "/k/vm<linuz" || len(d.Devices.Disks) != 2 || d.Devices.Disks[0].Source.File.File != "/d/a'b.qcow2" ||
		d.Devices.Disks[1].Target.Dev != "vdb" || d.Memory.Value != 128 || !strings.Contains(d.OS.Cmdline, "dirty=16 rate=0 hb=250") || len(d.UUID) != 36 {
		t.Errorf("parsed from\n%s", text)
	}
}

func TestCPIO_IsWhatTheKernelReads(t *testing.T) {
	// Header and padding by hand for one entry; whole archives are proved by
	// every guest that boots.
	got := cpio([]file{{"ab", []byte("hello")}})
	want := "070701" + fmt.Sprintf("%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", 1, 0o100755, 0, 0, 1, 0, 5, 0, 0, 0, 0, 3, 0) + "ab\x00\x00\x00\x00" + "hello\x00\x00\x00" + "070701"
	if d := cmp.Diff(want, string(got[:len(want)])); d != "" {
		t.Errorf("archive (-want +got):\n%s", d)
	}
	if !strings.Contains(string(got), "TRAILER!!!\x00") || len(got)%4 != 0 {
		t.Error("no end")
	}
	tool, err := exec.LookPath("busybox")
	if err != nil {
		return // a second opinion where there is one
	}
	path := filepath.Join(t.TempDir(), "a.cpio")
	if err := os.WriteFile(path, got, 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(tool, "cpio", "-t", "-F", path).Output()
	if err != nil || string(out) != "ab\ndev/console\n" {
		t.Errorf("busybox lists %q, %v", out, err)
	}
}
