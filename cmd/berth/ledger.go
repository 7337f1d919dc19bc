package main

import (
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"berth/internal/store"
)

func (a *app) ledgerCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "ledger",
		Short: "The agent's database on this machine",
		Long: `The agent keeps claims, tokens and the journal of moves in one file, berth.db in its
state directory. A start that finds it damaged, of another program, or missing sets
it aside as berth.db.damaged-DATE, takes over what is left in it, and asks libvirt, the
other hosts and Placement for the rest; berth status tells, under "ledger", how far that is.`,
	})
	cmd.AddCommand(a.ledgerCheck())
	return cmd
}

// ledgerChecked is what berth ledger check prints.
type ledgerChecked struct {
	File    string         `json:"file"`
	Whole   bool           `json:"whole"`
	Records map[string]int `json:"records"` // by bucket
	Lost    int            `json:"lost"`    // -1 where nobody knows
	Garbled []string       `json:"garbled,omitempty"`
	Behind  bool           `json:"behind,omitempty"`
	Faults  []string       `json:"faults,omitempty"`
}

func (a *app) ledgerCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check [FILE]",
		Short: "Read a database page by page, and say what is in it",
		Long: `Read a database as bytes, hold each record against its seal and all of them against
the count that the file keeps, and change nothing. Without FILE it is the one of the
agent on this machine; while that writes, what is read may be half of a commit: check
again. Exits with 7 for a file that is not whole.`,
		Example: "  berth ledger check\n  berth ledger check /var/lib/berth/berth.db.damaged-20240506T070809Z --json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			file := ""
			if len(args) == 1 {
				file = args[0]
			} else {
				c, err := a.readConfig()
				if err != nil {
					return err
				}
				file = filepath.Join(c.Agent.StateDir, "berth.db")
			}
			saved, err := store.Salvage(file)
			if err != nil {
				return err
			}
			out := ledgerChecked{
				File: file, Whole: saved.Complete() && len(saved.Faults) == 0, Records: map[string]int{},
				Lost: saved.Lost, Garbled: saved.Garbled, Behind: saved.Behind, Faults: saved.Faults,
			}
			for _, r := range saved.Records {
				out.Records[r.Bucket]++
			}
			if err := a.print(out, func(w io.Writer) { ledgerTable(w, out) }); err != nil {
				return err
			}
			if !out.Whole {
				return errDegraded
			}
			return nil
		},
	}
}

func ledgerTable(w io.Writer, l ledgerChecked) {
	verdict := "whole"
	if !l.Whole {
		verdict = "NOT WHOLE"
	}
	fmt.Fprintf(w, "%s: %s\n", l.File, verdict)
	for _, bucket := range slices.Sorted(maps.Keys(l.Records)) {
		fmt.Fprintf(w, "%s\t%d\n", bucket, l.Records[bucket])
	}
	switch {
	case l.Lost > 0:
		fmt.Fprintf(w, "lost\t%d\n", l.Lost)
	case l.Lost < 0:
		fmt.Fprintf(w, "lost\tnobody knows how many\n")
	}
	if l.Behind {
		fmt.Fprintf(w, "the last commit may be missing\n")
	}
	for _, f := range l.Faults {
		fmt.Fprintf(w, "  - %s\n", f)
	}
}
