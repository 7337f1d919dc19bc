package fit_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"berth/claims/fit"
	"berth/topology"
)

var host = fit.Host{
	Total:    topology.Resources{VCPUs: 8, MemoryMB: 16384, DiskGB: 100},
	Reserved: topology.Resources{VCPUs: 0, MemoryMB: 512, DiskGB: 10},
	CPURatio: 4, RAMRatio: 1, DiskRatio: 1,
}

func used(v int, m, d int64) fit.Host {
	h := host
	h.Used = topology.Resources{VCPUs: v, MemoryMB: m, DiskGB: d}
	return h
}

func TestFits(t *testing.T) {
	for _, tt := range []struct {
		name    string
		request topology.Resources
		host    fit.Host
		want    []fit.Reason
	}{
		{"empty host", topology.Resources{VCPUs: 8, MemoryMB: 15872, DiskGB: 90}, host, nil},
		{"exactly full", topology.Resources{VCPUs: 2, MemoryMB: 1024, DiskGB: 1}, used(30, 14848, 89), nil},
		{"one MiB too many", topology.Resources{VCPUs: 1, MemoryMB: 1025, DiskGB: 1}, used(1, 14848, 0), []fit.Reason{{
			Code: fit.MemoryShort, Message: "memory: want 1025 MiB, 1024 MiB free", Want: "1025 MiB", Have: "1024 MiB",
			Change: "free 1 MiB, or raise ram_allocation_ratio to 1.01",
		}}},
		{"every class at once", topology.Resources{VCPUs: 4, MemoryMB: 4096, DiskGB: 50}, used(30, 15000, 60), []fit.Reason{
			{Code: fit.VCPUShort, Message: "vcpus: want 4, 2 free", Want: "4", Have: "2", Change: "free 2, or raise cpu_allocation_ratio to 4.25"},
			{Code: fit.MemoryShort, Message: "memory: want 4096 MiB, 872 MiB free", Want: "4096 MiB", Have: "872 MiB",
				Change: "free 3224 MiB, or raise ram_allocation_ratio to 1.21"},
			{Code: fit.DiskShort, Message: "disk: want 50 GiB, 30 GiB free", Want: "50 GiB", Have: "30 GiB",
				Change: "free 20 GiB, or raise disk_allocation_ratio to 1.23"},
		}},
		{"larger than the host, whatever the ratio", topology.Resources{VCPUs: 9, MemoryMB: 1, DiskGB: 101}, host, []fit.Reason{
			{Code: fit.VCPUOverHost, Message: "vcpus: want 9, the host has 8", Want: "9", Have: "8",
				Change: "ask for at most 8, or choose a host with at least 9"},
			{Code: fit.DiskOverHost, Message: "disk: want 101 GiB, the host has 100 GiB", Want: "101 GiB", Have: "100 GiB",
				Change: "ask for at most 100 GiB, or choose a host with at least 101 GiB"},
		}},
		{"adopted guests over the limit", topology.Resources{VCPUs: 1, MemoryMB: 100, DiskGB: 0}, used(2, 20000, 500), []fit.Reason{{
			Code: fit.MemoryShort, Message: "memory: want 100 MiB, 0 MiB free (4128 MiB more in use than the host may give)",
			Want: "100 MiB", Have: "0 MiB", Change: "free 4228 MiB, or raise ram_allocation_ratio to 1.27",
		}}},
		{"all is reserved", topology.Resources{VCPUs: 1, MemoryMB: 1},
			fit.Host{Total: topology.Resources{VCPUs: 1, MemoryMB: 8}, Reserved: topology.Resources{MemoryMB: 8}}, []fit.Reason{{
				Code: fit.MemoryShort, Message: "memory: want 1 MiB, 0 MiB free", Want: "1 MiB", Have: "0 MiB", Change: "lower what is reserved",
			}}},
		{"dedicated CPUs are promised once, whatever the ratio", topology.Resources{VCPUs: 8, PCPUs: 3, MemoryMB: 1},
			fit.Host{Total: topology.Resources{VCPUs: 4, PCPUs: 4, MemoryMB: 8}, Used: topology.Resources{PCPUs: 2}, CPURatio: 4}, []fit.Reason{
				{Code: fit.VCPUOverHost, Message: "vcpus: want 8, the host has 4", Want: "8", Have: "4",
					Change: "ask for at most 4, or choose a host with at least 8"},
				{Code: fit.PCPUShort, Message: "pcpus: want 3, 2 free", Want: "3", Have: "2",
					Change: "free 1, or add CPUs to [host] dedicated_cpus"},
			}},
		{"a host without dedicated CPUs", topology.Resources{PCPUs: 1, MemoryMB: 1},
			fit.Host{Total: topology.Resources{VCPUs: 4, MemoryMB: 8}}, []fit.Reason{{
				Code: fit.PCPUOverHost, Message: "pcpus: want 1, the host has 0", Want: "1", Have: "0",
				Change: "ask for at most 0, or choose a host with at least 1",
			}}},
		{"nothing known of the host", topology.Resources{VCPUs: 1}, fit.Host{}, []fit.Reason{{
			Code: fit.VCPUOverHost, Message: "vcpus: want 1, the host has 0", Want: "1", Have: "0",
			Change: "ask for at most 0, or choose a host with at least 1",
		}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, fit.Fits(tt.request, tt.host)); diff != "" {
				t.Errorf("reasons (-want +got):\n%s", diff)
			}
		})
	}
}

func amounts(most int64) *rapid.Generator[topology.Resources] {
	return rapid.Custom(func(t *rapid.T) topology.Resources {
		n := rapid.Int64Range(0, most)
		return topology.Resources{VCPUs: int(n.Draw(t, "vcpus")), PCPUs: int(n.Draw(t, "pcpus")), MemoryMB: n.Draw(t, "memory"), DiskGB: n.Draw(t, "disk")}
	})
}

func hosts() *rapid.Generator[fit.Host] {
	return rapid.Custom(func(t *rapid.T) fit.Host {
		// Hundredths, as people write ratios; -1 and 0 stand for 1.
		ratio := rapid.Map(rapid.IntRange(-1, 400), func(n int) float64 { return float64(n) / 100 })
		return fit.Host{
			Total: amounts(300).Draw(t, "total"), Reserved: amounts(50).Draw(t, "reserved"), Used: amounts(400).Draw(t, "used"),
			CPURatio: ratio.Draw(t, "cpu"), RAMRatio: ratio.Draw(t, "ram"), DiskRatio: ratio.Draw(t, "disk"),
		}
	})
}

// classes lays the four amounts side by side, apart from the package's own way.
func classes(r topology.Resources) [4]int64 {
	return [4]int64{int64(r.VCPUs), int64(r.PCPUs), r.MemoryMB, r.DiskGB}
}

func TestFits_IsTheArithmetic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, request := hosts().Draw(t, "host"), amounts(300).Draw(t, "request")
		total, reserved, inUse, want := classes(h.Total), classes(h.Reserved), classes(h.Used), classes(request)
		short := 0
		for i, ratio := range []float64{h.CPURatio, 1, h.RAMRatio, h.DiskRatio} {
			if ratio <= 0 {
				ratio = 1
			}
			over := float64(inUse[i]+want[i]) > float64(total[i]-reserved[i])*ratio
			if want[i] > 0 && (over || want[i] > total[i]) {
				short++
			}
		}
		reasons := fit.Fits(request, h)
		if len(reasons) != short {
			t.Fatalf("%d reasons, want %d: %+v", len(reasons), short, reasons)
		}
		for _, r := range reasons {
			if r.Code == "" || r.Message == "" || r.Want == "" || r.Have == "" || r.Change == "" || r.Cell != nil {
				t.Errorf("incomplete reason %+v", r)
			}
		}
	})
}

func TestFits_TheChangeNamedIsEnough(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, request := hosts().Draw(t, "host"), amounts(300).Draw(t, "request")
		for _, r := range fit.Fits(request, h) {
			_, text, ok := strings.Cut(r.Change, "_allocation_ratio to ")
			if !ok {
				continue
			}
			ratio, err := strconv.ParseFloat(text, 64)
			if err != nil {
				t.Fatal(err)
			}
			raised := h
			raised.CPURatio, raised.RAMRatio, raised.DiskRatio = ratio, ratio, ratio
			for _, still := range fit.Fits(request, raised) {
				if still.Code == r.Code {
					t.Errorf("%s: after %q: %s", r.Message, r.Change, still.Message)
				}
			}
		}
	})
}

func TestHost_FreeIsNeverNegativeAndAlwaysFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := hosts().Draw(t, "host")
		free := h.Free()
		if free.VCPUs < 0 || free.PCPUs < 0 || free.MemoryMB < 0 || free.DiskGB < 0 {
			t.Fatalf("free %s", free)
		}
		free.VCPUs, free.PCPUs = min(free.VCPUs, h.Total.VCPUs), min(free.PCPUs, h.Total.PCPUs)
		free.MemoryMB, free.DiskGB = min(free.MemoryMB, h.Total.MemoryMB), min(free.DiskGB, h.Total.DiskGB)
		if r := fit.Fits(free, h); r != nil {
			t.Errorf("what is free does not fit: %+v", r)
		}
	})
}

func BenchmarkFits(b *testing.B) {
	h := used(20, 8000, 50)
	for b.Loop() {
		if fit.Fits(topology.Resources{VCPUs: 2, MemoryMB: 1024, DiskGB: 10}, h) != nil {
			b.Fatal("does not fit")
		}
	}
}
