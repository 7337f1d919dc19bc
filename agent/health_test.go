package agent

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/claims"
	"berth/internal/fault"
	"berth/topology"
)

func TestForcedReasons_NameGuestsAndWhatIsDoubled(t *testing.T) {
	cpu, other, cell, id := 4, 5, topology.CellID(1), 1
	names := map[string]string{"11": "web", "22": "db"}
	got := forcedReasons(claims.Usage{
		Forced: []string{"22", "11"},
		Doubled: []claims.Doubled{
			{CPU: &cpu, Cell: &cell, Instances: []string{"11", "22"}},
			{CPU: &other, Cell: &cell, Instances: []string{"22"}},
			{Cell: &cell, PageSize: topology.PageSize2M, Over: 3, Instances: []string{"11"}},
		},
	}, func(id string) string { return names[id] }, func(id string) bool { return id == "11" })
	want := []fault.Reason{
		{Code: "claim_forced", Message: "guest db was adopted though it does not fit", Change: "move it, or another, to a host with room"},
		{Code: "claim_forced", Message: "guest web was changed by hand though it does not fit", Change: "move it, or another, to a host with room"},
		{Code: "cpus_doubled", Message: "cpu 4 of cell 1: held by web and db", Cell: &id, Have: "web, db", Change: "move all of them but one to other hosts"},
		{
			Code: "cpu_not_dedicated", Message: "cpu 5 of cell 1: held by db, and not a dedicated CPU", Cell: &id, Have: "db",
			Change: "put CPU 5 into [host] dedicated_cpus, or move the guest: it gets a dedicated CPU then",
		},
		{Code: "pages_over", Message: "2MiB pages of cell 1: 3 more than there are, held by web", Cell: &id, Have: "web", Change: "move guests away, or make the pool larger"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
