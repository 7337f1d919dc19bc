package hwdiscovery

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"berth/topology"
)

func write(t testing.TB, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// poolTree is a tree of nothing but nodes with pools of two sizes.
func poolTree(t testing.TB, nodes int) string {
	t.Helper()
	root := machineDir(t)
	write(t, root, "sys/devices/system/cpu/online", "0-7\n")
	write(t, root, "sys/devices/system/node/online", "0-"+string(rune('0'+nodes-1))+"\n")
	for _, size := range []string{"2048", "1048576"} {
		write(t, root, "sys/kernel/mm/hugepages/hugepages-"+size+"kB/nr_hugepages", "512\n")
		for n := range nodes {
			write(t, root, nodeFile(n, "hugepages/hugepages-"+size+"kB/nr_hugepages"), "64\n")
			write(t, root, nodeFile(n, "hugepages/hugepages-"+size+"kB/free_hugepages"), "64\n")
		}
	}
	return root
}

func TestWatch_SeesEachChangeOnce(t *testing.T) {
	root := poolTree(t, 2)
	w, err := NewWatch(root)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	look := func(what string, want bool) {
		t.Helper()
		if got := w.Changed(); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
		if want && w.Changed() {
			t.Errorf("%s is seen twice", what)
		}
	}
	huge := nodeFile(1, "hugepages/hugepages-2048kB/")
	look("nothing", false)
	write(t, root, huge+"free_hugepages", "1\n")
	look("pages that a guest took", false)
	write(t, root, huge+"nr_hugepages", "128\n")
	look("a larger pool", true)
	write(t, root, huge+"nr_hugepages", "12\n")
	look("a smaller pool", true)
	write(t, root, nodeFile(2, "hugepages/hugepages-2048kB/nr_hugepages"), "0\n")
	write(t, root, "sys/devices/system/node/online", "0-2\n")
	look("a new node", true)
	write(t, root, nodeFile(2, "hugepages/hugepages-2048kB/nr_hugepages"), "5\n")
	look("the new node's pool", true)
	write(t, root, "sys/devices/system/cpu/online", "0-6\n")
	look("a CPU that went", true)
}

func TestWatch_AFileThatCannotBeReadIsAChangeOnce(t *testing.T) {
	root := poolTree(t, 1)
	w, err := NewWatch(root)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	files := w.Files()
	if files != 6 { // CPUs, nodes, and two pools of the host and of the node
		t.Errorf("%d files", files)
	}
	// As a node's files answer ENODEV when it went: reading a folder is an error.
	pool := filepath.Join(root, nodeFile(0, "hugepages/hugepages-2048kB/nr_hugepages"))
	if err := os.Remove(pool); err != nil {
		t.Fatal(err)
	}
	write(t, root, nodeFile(0, "hugepages/hugepages-2048kB/nr_hugepages/x"), "")
	w.scan()
	if w.Changed() {
		t.Error("what is unreadable as before is a change")
	}
	if err := os.RemoveAll(pool); err != nil {
		t.Fatal(err)
	}
	write(t, root, nodeFile(0, "hugepages/hugepages-2048kB/nr_hugepages"), "7\n")
	w.scan()
	if w.Files() != files || w.Changed() {
		t.Errorf("%d files, want %d and no change", w.Files(), files)
	}
	// As where a node went, whose open files answer with an error from then on.
	if err := w.files[0].file.Close(); err != nil {
		t.Fatal(err)
	}
	if !w.Changed() || w.Changed() {
		t.Error("an open file that cannot be read any more is no change, or one twice")
	}
	// One that cannot be opened.
	if err := os.Remove(pool); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nr_hugepages", pool); err != nil {
		t.Fatal(err)
	}
	w.scan()
	if w.Files() != files-1 || w.Changed() {
		t.Errorf("%d files, want %d and no change", w.Files(), files-1)
	}
	if _, err := NewWatch(filepath.Join(root, "nowhere")); err == nil {
		t.Error("a root that is not there is watched")
	}
}

func TestWatch_LeavesNoFileOpen(t *testing.T) {
	open := func() int {
		names, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(names)
	}
	root := poolTree(t, 2)
	before := open()
	w, err := NewWatch(root)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 20 {
		write(t, root, nodeFile(1, "hugepages/hugepages-2048kB/nr_hugepages"), string(rune('a'+n))+"\n")
		if !w.Changed() {
			t.Error("no change")
		}
	}
	if n := open() - before; n > w.Files()+5 {
		t.Errorf("%d files are open, want %d and few more", n, w.Files())
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if n := open() - before; n > 5 {
		t.Errorf("%d files stay open", n)
	}
}

// TestWatch_CostsNothing reads the live machine's files, where sysfs makes each
// text anew, and a copy of eight nodes.
func TestWatch_CostsNothing(t *testing.T) {
	for name, root := range map[string]string{"live": "/", "two nodes": poolTree(t, 2), "eight nodes": poolTree(t, 8)} {
		w, err := NewWatch(root)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		best := time.Hour // the machine may be busy with others
		for range 50 {
			start := time.Now()
			w.Changed()
			best = min(best, time.Since(start))
		}
		t.Logf("%s: %d files, %s", name, w.Files(), best)
		if most := 200 * time.Microsecond; best > most {
			t.Errorf("%s: a look takes %s, want at most %s", name, best, most)
		}
	}
}

func BenchmarkWatch_EightNodes(b *testing.B) {
	w, err := NewWatch(poolTree(b, 8))
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	for b.Loop() {
		w.Changed()
	}
}

// TestDiscover_NamesAFunctionThatNobodyAnswersFor kills a card of a sound machine
// in the ways that it can look dead and is not, and in the one that it is.
func TestDiscover_NamesAFunctionThatNobodyAnswersFor(t *testing.T) {
	const card = "0000:3b:00.0"
	ones := "\xff\xff\xff\xff\xff\xff\xff\xff"
	for _, tt := range []struct {
		name  string
		files map[string]string
		dead  []string // addresses
	}{
		{"it answers", map[string]string{card + "/config": "\x86\x80\x63\x15"}, nil},
		{"it has no such file", nil, nil},
		{"its file is empty", map[string]string{card + "/config": ""}, nil},
		{"it does not answer", map[string]string{card + "/config": ones}, []string{card, "0000:3b:02.0"}},
		{"it sleeps", map[string]string{card + "/config": ones, card + "/power/runtime_status": "suspended\n"}, nil},
		{"it falls asleep", map[string]string{card + "/config": ones, card + "/power/runtime_status": "suspending\n"}, nil},
		{"it is awake and does not answer", map[string]string{card + "/config": ones, card + "/power/runtime_status": "active\n"}, []string{card, "0000:3b:02.0"}},
		{"its virtual function reads as all do", map[string]string{"0000:3b:02.0/config": ones}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := machineDir(t)
			plant(t, bigMachine(2), root)
			for _, address := range []string{card, "0000:3b:02.0"} {
				for name, text := range map[string]string{"vendor": "0x8086", "device": "0x1563", "class": "0x088000"} {
					write(t, root, pciDir+"/"+address+"/"+name, text+"\n")
				}
			}
			write(t, root, pciDir+"/"+card+"/sriov_totalvfs", "4\n")
			write(t, root, pciDir+"/"+card+"/sriov_numvfs", "1\n")
			for link, target := range map[string]string{card + "/virtfn0": "../0000:3b:02.0", "0000:3b:02.0/physfn": "../" + card} {
				if err := os.Symlink(target, filepath.Join(root, pciDir, link)); err != nil {
					t.Fatal(err)
				}
			}
			for name, text := range tt.files {
				write(t, root, pciDir+"/"+name, text)
			}
			h, err := Discover(root)
			if err != nil {
				t.Fatal(err)
			}
			var dead []string
			for _, r := range h.Reasons {
				if r.Degrades && r.Code != CodeDead {
					t.Errorf("also %+v", r)
				}
				if r.Code == CodeDead {
					dead = append(dead, r.Device.String())
				}
			}
			slices.Sort(dead)
			if !slices.Equal(dead, tt.dead) || (h.Health == topology.HealthOK) != (len(tt.dead) == 0) {
				t.Errorf("dead are %v, health %s; want %v", dead, h.Health, tt.dead)
			}
		})
	}
}

func TestDiscover_TakesSerialNumbersThatAreKnown(t *testing.T) {
	const card = "0000:3b:00.0"
	root := machineDir(t)
	plant(t, bigMachine(2), root)
	for name, text := range map[string]string{"vendor": "0x15b3\n", "device": "0x1017\n", "class": "0x020000\n", "vpd": "\x90\x06\x00SN\x03A42\x78"} {
		write(t, root, pciDir+"/"+card+"/"+name, text)
	}
	var known *topology.Host
	serial := func() string {
		t.Helper()
		h, err := Discover(root, WithSerialNumbersOf(known))
		if err != nil || len(h.PCI) != 1 {
			t.Fatalf("%+v, %v", h.PCI, err)
		}
		if known == nil {
			known = &h
		}
		return h.PCI[0].SerialNumber
	}
	if got := serial(); got != "A42" {
		t.Fatalf("serial number %q", got)
	}
	known.PCI[0].SerialNumber = "KEPT"
	if got := serial(); got != "KEPT" {
		t.Errorf("the card was asked for its serial number again: %q", got)
	}
	write(t, root, pciDir+"/"+card+"/device", "0x1018\n")
	if got := serial(); got != "A42" {
		t.Errorf("another card at the same address has serial number %q", got)
	}
}

// TestWatch_AnOpenFileOfSysfsTellsTheValueOfTheMoment holds the kernel to what
// Watch relies on, by an attribute that is made as those of the pools are and that
// changes when a device is asked to repeat its event.
func TestWatch_AnOpenFileOfSysfsTellsTheValueOfTheMoment(t *testing.T) {
	devices, err := filepath.Glob("/sys/bus/*/devices/*/uevent")
	if err != nil || len(devices) == 0 {
		t.Skip("this machine has no device in /sys")
	}
	ask, err := os.OpenFile(devices[0], os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("events can be asked for by root alone, where /sys is writable: %v", err)
	}
	defer ask.Close()
	file, err := os.Open("/sys/kernel/uevent_seqnum")
	if err != nil {
		t.Skip(err)
	}
	w := &Watch{buf: make([]byte, 4096)}
	before := string(w.look(file))
	w.files = append(w.files, watched{file: file})
	defer w.forget()
	if _, err := ask.WriteString("change"); err != nil {
		t.Skipf("the kernel gives no event on demand: %v", err)
	}
	if now := string(w.look(file)); now == before {
		t.Errorf("still %q after an event", now)
	}
}
