package lab

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/topology"
)

const machineMeminfo = `MemTotal:       16000000 kB
MemFree:        12000000 kB
MemAvailable:   13000000 kB
HugePages_Total:       3
HugePages_Free:        1
HugePages_Rsvd:        1
HugePages_Surp:        2
Hugepagesize:       2048 kB
Hugetlb:            6144 kB
`

func TestViewFiles_CellsAddUpToTheHost(t *testing.T) {
	files, links, err := viewFiles(2, 128, topology.CPUSet{0, 1, 2, 35}, machineMeminfo)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"node/online":         "0-1\n",
		"node/node0/cpulist":  "0,2\n",
		"node/node0/cpumap":   "00000000,00000005\n",
		"node/node1/cpulist":  "1,35\n",
		"node/node1/cpumap":   "00000008,00000002\n",
		"node/node0/distance": "10 21\n",
		"node/node1/distance": "21 10\n",
		"node/node1/meminfo": "Node 1 MemTotal:        8000000 kB\nNode 1 MemFree:         5868928 kB\nNode 1 MemUsed:         2131072 kB\n" +
			"Node 1 HugePages_Total:    64\nNode 1 HugePages_Free:    64\nNode 1 HugePages_Surp:      0\n",
		"node/node0/hugepages/hugepages-2048kB/nr_hugepages": "64\n",
		"node/node1/hugepages/hugepages-2048kB/nr_hugepages": "64\n",
		"hugepages/hugepages-2048kB/nr_hugepages":            "128\n",
		"meminfo": `MemTotal:       16000000 kB
MemFree:        12000000 kB
MemAvailable:   13000000 kB
HugePages_Total:     128
HugePages_Free:      128
HugePages_Rsvd:        0
HugePages_Surp:        0
Hugepagesize:       2048 kB
Hugetlb:          262144 kB
`,
	} {
		if files[name] != want {
			t.Errorf("%s is\n%s, want\n%s", name, files[name], want)
		}
	}
	if got := links["node/node1/cpu35"]; got != "../../cpu/cpu35" || len(links) != 4 {
		t.Errorf("links to CPUs: %v", links)
	}
}

func TestViewFiles_RefusesWhatCannotBeShared(t *testing.T) {
	for name, c := range map[string]struct {
		cells, pages int
		want         string
	}{
		"more cells than CPUs":    {3, 0, "want a CPU each"},
		"a page too many":         {2, 129, "shared evenly"},
		"more pages than memory":  {1, 6000, "free memory"},
		"as many as there may be": {2, 128, ""},
	} {
		_, _, err := viewFiles(c.cells, c.pages, topology.CPUSet{0, 1}, machineMeminfo)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// testPages is an account whose limit is a file; the machine's own is 7.
func testPages(t *testing.T) pageAccount {
	dir := t.TempDir()
	a := pageAccount{filepath.Join(dir, "cache", "hugepages.json"), filepath.Join(dir, "limit"), filepath.Join(dir, "boot")}
	for path, text := range map[string]string{a.limit: "7\n", a.boot: "first\n"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

func (a pageAccount) requireLimit(t *testing.T, when, want string) {
	t.Helper()
	got, err := os.ReadFile(a.limit)
	if err != nil || strings.TrimSpace(string(got)) != want {
		t.Errorf("%s the limit is %s, want %s (%v)", when, got, want, err)
	}
}

func TestPageAccount_LastLabPutsTheMachinesLimitBack(t *testing.T) {
	a := testPages(t)
	me, err := seen(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(a.hold("/one", 0, me))
	if exists(a.ledger) {
		t.Error("a lab without huge pages keeps an account")
	}
	must(a.hold("/one", 100, me))
	a.requireLimit(t, "with one lab", "107")
	must(a.hold("/two", 50, me))
	a.requireLimit(t, "with two labs", "157")
	must(a.hold("/one", 0, process{}))
	a.requireLimit(t, "after the first ended", "57")
	must(a.hold("/one", 0, process{}))
	a.requireLimit(t, "after it ended once more", "57")
	must(a.hold("/two", 0, process{}))
	a.requireLimit(t, "after the last", "7")
	if exists(a.ledger) {
		t.Error("the account outlives the labs")
	}
}

func TestPageAccount_NextLabRepairsWhatACrashLeft(t *testing.T) {
	a := testPages(t)
	me, err := seen(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	dead := process{PID: me.PID, Start: me.Start + 1} // its number was given to us
	if err := a.hold("/crashed", 100, dead); err != nil {
		t.Fatal(err)
	}
	a.requireLimit(t, "after the crash", "107")
	if err := a.hold("/other", 0, me); err != nil {
		t.Fatal(err)
	}
	a.requireLimit(t, "after another lab came up", "7")

	// Killed between the two writes: the account holds, whatever the limit says.
	if err := a.hold("/crashed", 100, dead); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(a.limit, []byte("7\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := a.hold("/other", 20, me); err != nil {
		t.Fatal(err)
	}
	a.requireLimit(t, "after another took pages", "27")

	// A machine that was started anew has its own settings.
	for path, text := range map[string]string{a.boot: "second", a.limit: "3"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.hold("/other", 0, me); err != nil {
		t.Fatal(err)
	}
	a.requireLimit(t, "after a reboot", "3")
}

func TestLab_MadeUpCellsAndHugePagesLeaveTheMachineAsItWas(t *testing.T) {
	Require(t)
	ctx := ctx1(t)
	before := poolFiles(t)
	dir := filepath.Join(t.TempDir(), "lab")
	l, err := Up(ctx, Options{Dir: dir, Cells: 2, HugePages: 16})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Down(); err != nil {
			t.Error(err)
		}
	})
	h := l.Hosts[0]
	xml, err := h.Virsh(ctx, "capabilities")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<cells num='2'>", "<pages unit='KiB' size='2048'>8</pages>", "<sibling id='1' value='21'/>"} {
		if !strings.Contains(xml, want) {
			t.Errorf("libvirt's capabilities have no %s", want)
		}
	}
	got, err := h.Exec(ctx, "sh", "-c", "cat /sys/devices/system/node/node1/cpulist /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages; stat -f -c %b /run/hugepages")
	if lines := strings.Fields(got); len(lines) != 3 || !strings.HasPrefix(lines[0], "1") || lines[1] != "16" || lines[2] != "16" {
		t.Errorf("in the host CPUs of node 1, pages, size of its pool: %q, %v", got, err)
	}
	// A detour through another process, as a host that was off has it.
	if err := h.PowerOff(); err != nil {
		t.Fatal(err)
	}
	other, err := Attach(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Hosts[0].PowerOn(ctx); err != nil {
		t.Fatal(err)
	}
	if got, err := other.Hosts[0].Exec(ctx, "cat", "/sys/devices/system/node/online"); err != nil || got != "0-1" {
		t.Errorf("after power on the host's nodes are %q, %v", got, err)
	}
	if left := traces(t, dir); len(left) > 0 {
		t.Errorf("seen on the machine while the lab is up: %q", left)
	}
	if err := l.Down(); err != nil {
		t.Fatal(err)
	}
	if after := poolFiles(t); after != before {
		t.Errorf("the machine's huge pages were\n%s and are\n%s", before, after)
	}
}

// poolFiles is all that the kernel says of the machine's pages of 2 MiB.
func poolFiles(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(filepath.Dir(overcommitFile), "*"))
	if err != nil || len(files) == 0 {
		t.Skipf("the kernel has no pages of 2 MiB: %v", err)
	}
	var b strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // some kernels' demote is for writing only
		}
		b.WriteString(filepath.Base(f) + " " + string(text))
	}
	return b.String()
}
