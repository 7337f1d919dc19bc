package host

import (
	"context"
	"slices"
	"strings"

	"berth/internal/fault"
	"berth/migration"
)

// leftByCopy gives a reason for each bitmap and each internal snapshot in the images of disks that
// libvirt is to copy to dest while the instance runs: the copy has the guest's data alone. Cold
// moves ship the file as it is. It reads the images.
func leftByCopy(ctx context.Context, files Files, g migration.Guest, targets []string, dest string) ([]fault.Reason, error) {
	var out []fault.Reason
	for _, d := range g.Disks {
		if !slices.Contains(targets, d.Target) || d.Format != "qcow2" {
			continue
		}
		img, err := files.Image(ctx, d.Path, d.Format)
		if err != nil {
			return nil, wrap(err, "disk %s", d.Target)
		}
		for _, what := range img.Inside {
			kind, _, _ := strings.Cut(what, " ")
			out = append(out, fault.Reason{
				Code: "has_" + kind, Message: "disk " + d.Target + " (" + d.Path + ") has the " + what + " in its image, which a live copy leaves behind", Have: what,
				Change: "move it while it is off, which ships the file as it is: berth migrate " + fault.Quote(g.Name) + " " + fault.Quote(dest) + " --cold",
			})
		}
	}
	return out, nil
}
