package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"berth/internal/fault"
	"berth/internal/version"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Which build this is",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				version.Info
				Libvirt string `json:"libvirt_binding"`
			}{version.Get(), a.bindingName}
			return a.print(v, func(w io.Writer) {
				fmt.Fprintf(w, "berth %s\n", v)
				if v.Commit != "" {
					fmt.Fprintf(w, "commit\t%s\n", v.Commit)
				}
				fmt.Fprintf(w, "go\t%s %s\nlibvirt\t%s\n", v.Go, v.Platform, v.Libvirt)
			})
		},
	}
}

func faultNotFound(format string, args ...any) error {
	return fault.New(fault.NotFound, format, args...)
}
