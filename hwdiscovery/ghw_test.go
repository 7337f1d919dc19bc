package hwdiscovery

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/topology"
)

// split takes the remarks on ghw out of a Host.
func split(h topology.Host) (topology.Host, []topology.Reason) {
	rest, remarks := []topology.Reason{}, []topology.Reason{}
	for _, r := range h.Reasons {
		if r.Code == codeGHWDiffers || r.Code == codeGHWFailed {
			remarks = append(remarks, r)
		} else {
			rest = append(rest, r)
		}
	}
	h.Reasons = rest
	return h, remarks
}

// readBoth reads a tree with ghw and without it, holds both to the same Host, byte
// for byte, and gives the remarks on ghw.
func readBoth(t *testing.T, what, root string) []topology.Reason {
	t.Helper()
	with, err := Discover(root)
	without, alone := Discover(root, withoutGHW())
	if (err == nil) != (alone == nil) {
		t.Errorf("%s: error %v, without ghw %v", what, err, alone)
	}
	if err != nil {
		return nil
	}
	with, remarks := split(with)
	if diff := cmp.Diff(string(golden(t, without)), string(golden(t, with))); diff != "" {
		t.Errorf("%s: ghw changed the host (-without +with):\n%s", what, diff)
	}
	return remarks
}

// TestDiscover_GHWTellsTheFactsAndSysfsConfirmsThem: on every machine and fixture ghw
// tells a part of the host, sysfs agrees with it but where it is known to be wrong, and
// the Host is the one that sysfs alone gives.
func TestDiscover_GHWTellsTheFactsAndSysfsConfirmsThem(t *testing.T) {
	known := map[string]string{
		"ghw-joins-cores": "cores", // two packages in a cell have cores of one number
	}
	var cells, devices int
	read := func(name, root string) {
		t.Run(name, func(t *testing.T) {
			for _, r := range readBoth(t, name, root) {
				if fact, ok := known[name]; !ok || r.Code != codeGHWDiffers || r.File == "" || !strings.Contains(r.Message, fact+": ghw reads ") {
					t.Errorf("remark %+v", r)
				}
			}
			h, err := Discover(root, withoutGHW())
			if err != nil {
				return
			}
			r, err := os.OpenRoot(root)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			tr := &tree{root: r}
			tr.readGHW(root, slog.New(slog.DiscardHandler))
			for _, c := range h.Cells {
				first := tr.ghw.cells[int(c.ID)]
				if !first.cpus.IsEmpty() && first.memory > 0 {
					cells++
				}
			}
			devices += len(tr.ghw.devices)
		})
	}
	for _, archive := range sharedMachines(t) {
		read(strings.TrimSuffix(filepath.Base(archive), ".tar.bz2"), unpack(t, archive, machineDir(t)))
	}
	for _, name := range fixtureNames(t) {
		read(name, fixture(t, name))
	}
	// Copies of old kernels lack what ghw wants of a cell; see readGHW.
	if cells < 6 || devices < 250 {
		t.Errorf("ghw tells %d cells and %d functions: less than it did", cells, devices)
	}
}

// TestDiscover_GHWChangesNoDamagedHost damages every file of trees that ghw reads
// whole: the Host and its reasons are those of sysfs alone.
func TestDiscover_GHWChangesNoDamagedHost(t *testing.T) {
	for _, name := range []string{"last-level-caches", "sriov", "node-pool-in-meminfo"} {
		t.Run(name, func(t *testing.T) {
			root := fixture(t, name)
			meminfo := filepath.Join(root, procMeminfo)
			if data, err := os.ReadFile(meminfo); err != nil {
				t.Fatal(err)
			} else if !bytes.Contains(data, []byte("Hugetlb")) {
				write(t, root, procMeminfo, string(data)+"Hugetlb: 0 kB\n")
			}
			var files []string
			err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.Type().IsRegular() {
					files = append(files, path)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			for i, file := range files {
				data, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				for j, d := range damages {
					if !inTurn(i, j) {
						continue
					}
					if d.to == nil {
						err = os.Remove(file)
					} else {
						err = os.WriteFile(file, d.to(data), 0o644)
					}
					if err != nil {
						t.Fatal(err)
					}
					readBoth(t, file+" "+d.name, root)
				}
				if err := os.WriteFile(file, data, 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestDiscover_GHWDiffers_NamesFileAndBothValues: ghw takes ids from modalias.
func TestDiscover_GHWDiffers_NamesFileAndBothValues(t *testing.T) {
	root := fixture(t, "sriov")
	file := pciDir + "/0000:17:00.0/modalias"
	data, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	write(t, root, file, string(data[:9])+"DEAD"+string(data[13:])) // pci:v0000DEADd...
	var remarks []topology.Reason
	for _, r := range readBoth(t, "another vendor in modalias", root) {
		if strings.Contains(r.Message, "vendor: ghw reads 0xdead, sysfs 0x") {
			remarks = append(remarks, r)
		}
	}
	if len(remarks) != 1 || remarks[0].File != pciDir+"/0000:17:00.0/vendor" || remarks[0].Device == nil || remarks[0].Degrades {
		t.Errorf("remarks %+v", remarks)
	}
}

// TestDiscover_GHWPanics_SysfsGivesTheHost: ghw cuts names of pools without looking.
func TestDiscover_GHWPanics_SysfsGivesTheHost(t *testing.T) {
	root := fixture(t, "two-sockets")
	if err := os.Mkdir(filepath.Join(root, nodeFile(1, "hugepages/pool")), 0o755); err != nil {
		t.Fatal(err)
	}
	remarks := readBoth(t, "a pool of another name", root)
	if len(remarks) != 1 || remarks[0].Code != codeGHWFailed || remarks[0].File != nodeDir+"/node1" || *remarks[0].Cell != 1 || !strings.Contains(remarks[0].Message, "panic") {
		t.Errorf("remarks %+v", remarks)
	}
}

// TestDiscover_GHWIsQuiet: what ghw does not tell goes to the log at debug level.
func TestDiscover_GHWIsQuiet(t *testing.T) {
	root := fixture(t, "two-sockets") // without the line Hugetlb
	if err := os.Remove(filepath.Join(root, pciDir, "0000:17:00.0", "modalias")); err != nil {
		t.Fatal(err)
	}
	for level, wants := range map[slog.Level][]string{slog.LevelInfo: nil, slog.LevelDebug: {"cell=1", "Hugetlb", "modalias"}} {
		var said bytes.Buffer
		h, err := Discover(root, WithLog(slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: level}))))
		if err != nil || len(h.Reasons) != 0 || len(h.PCI) == 0 {
			t.Errorf("%d functions, reasons %+v, error %v", len(h.PCI), h.Reasons, err)
		}
		if wants == nil && said.Len() > 0 {
			t.Errorf("level %s: %s", level, said.String())
		}
		for _, want := range wants {
			if !strings.Contains(said.String(), want) {
				t.Errorf("level %s: no %q in %s", level, want, said.String())
			}
		}
	}
}

type noNetwork struct{ asked *[]string }

func (n noNetwork) RoundTrip(r *http.Request) (*http.Response, error) {
	*n.asked = append(*n.asked, r.URL.String())
	return nil, errors.New("no network in this test")
}

// TestDiscover_GHWNeverFetchesPCINames sets what makes ghw fetch its file of names.
func TestDiscover_GHWNeverFetchesPCINames(t *testing.T) {
	t.Setenv("PCIDB_PATH", filepath.Join(t.TempDir(), "nowhere"))
	t.Setenv("PCIDB_ENABLE_NETWORK_FETCH", "1")
	var asked []string
	was := http.DefaultTransport
	http.DefaultTransport = noNetwork{&asked}
	t.Cleanup(func() { http.DefaultTransport = was })
	remarks := readBoth(t, "sriov", fixture(t, "sriov"))
	if len(asked) > 0 || slices.ContainsFunc(remarks, func(r topology.Reason) bool { return r.Code == codeGHWFailed }) {
		t.Errorf("asked %v, remarks %+v", asked, remarks)
	}
}
