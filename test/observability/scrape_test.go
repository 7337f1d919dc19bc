package observability

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/test/fleet"
	"berth/test/lab"
)

// scrapeBound is what a scrape may take, whatever hangs.
const scrapeBound = 50 * time.Millisecond

// TestScrape_AnswersWhileLibvirtdIsStopped: a real libvirtd that gets SIGSTOP, which every
// request of the agent waits for in vain. What is scraped says so, and says it at once.
func TestScrape_AnswersWhileLibvirtdIsStopped(t *testing.T) {
	if testing.Short() {
		t.Skip("hosts are not started in short tests")
	}
	lab.Require(t)
	dir := lab.TempDir(t)
	// Open to QEMU, which is another user.
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := fleet.Up(t.Context(), fleet.Options{Dir: filepath.Join(dir, "fleet"), Names: []string{"host-a"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Down(); err != nil {
			t.Error(err)
		}
	})
	host := f.Hosts[0]
	scrape := func() (string, time.Duration) {
		t.Helper()
		out, err := host.Exec(t.Context(), "curl", "-sS", "-w", "\n%{time_total}", "http://127.0.0.1:9178/metrics")
		if err != nil {
			t.Fatal(err)
		}
		at := strings.LastIndexByte(out, '\n')
		seconds, err := strconv.ParseFloat(strings.TrimSpace(out[at+1:]), 64)
		if err != nil {
			t.Fatal(err)
		}
		return out[:at], time.Duration(seconds * float64(time.Second))
	}
	until := func(says string) {
		t.Helper()
		var text string
		for end := time.Now().Add(patience); !strings.Contains(text, "\n"+says+"\n"); time.Sleep(200 * time.Millisecond) {
			if text, _ = scrape(); time.Now().After(end) {
				t.Fatalf("%s is not said:\n%s", says, text)
			}
		}
	}
	// ready is what the socket says, at any time.
	ready := func() string {
		t.Helper()
		out, err := host.Exec(t.Context(), "curl", "-sS", "--unix-socket", "/run/berth/berth.sock", "http://agent/readyz")
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	until(`berth_health{part="libvirt"} 1`)
	until("berth_agent_ready 1")
	if says := ready(); !strings.HasPrefix(says, "ready\n") {
		t.Errorf("readyz says %q", says)
	}
	if err := host.PauseLibvirtd(); err != nil {
		t.Fatal(err)
	}
	until(`berth_health{part="libvirt"} 0`)
	until("berth_agent_ready 0")
	if says := ready(); !strings.Contains(says, "no   libvirt: libvirt_unavailable") {
		t.Errorf("readyz says %q", says)
	}
	// Others work on the same machine, so that half of a round are to be in time, and a round may
	// be disturbed: one that asked libvirt would be never.
	took := make([]time.Duration, 21)
	for median, end := time.Hour, time.Now().Add(patience); median > scrapeBound; {
		for i := range took {
			_, took[i] = scrape()
		}
		slices.Sort(took)
		median = took[len(took)/2]
		t.Logf("with libvirtd stopped %d scrapes take %s to %s, the median %s", len(took), took[0], took[len(took)-1], median)
		if median > scrapeBound && time.Now().After(end) {
			t.Fatalf("half of the scrapes take %s and more, want at most %s", median, scrapeBound)
		}
	}
	text, _ := scrape()
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "process_resident_memory_bytes ") || strings.HasPrefix(line, "process_cpu_seconds_total ") {
			t.Log(strings.TrimSpace(line)) // of the agent, to be read
		}
	}
	if err := host.ResumeLibvirtd(); err != nil {
		t.Fatal(err)
	}
	until(`berth_health{part="libvirt"} 1`)
	until("berth_agent_ready 1")
}
