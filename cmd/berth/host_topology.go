package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"berth/agent/api"
	"berth/agent/drawing"
	"berth/internal/fault"
	"berth/internal/screen"
)

func (a *app) hostTopology() *cobra.Command {
	var svg bool
	var width int
	cmd := &cobra.Command{
		Use:   "topology",
		Short: "Draw a host: its cells, CPUs, memory, pages and devices, and who holds what",
		Long: `Draw a host with what guests hold of it: each NUMA cell with its cores and CPUs, its
memory and huge pages, and the PCI functions that [pci] device_spec gives to guests. Each
guest has a letter; what it has to itself bears it, and a list below says the rest.

In a terminal the drawing is as wide as that, and in colour unless NO_COLOR is set; in a
pipe it is 100 columns wide, or COLUMNS, and has no colour. --svg writes a picture for a
browser, light or dark as the browser is; pointing at a part of it says who has it.`,
		Example: "  berth host topology\n  berth host topology --svg > host.svg\n  berth host topology -c host-b",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("width") && (width < 60 || width > 10000) {
				return misused("--width %d: want 60 to 10000 columns", width)
			}
			return a.ask(cmd, answerTime, func(ctx context.Context, c *api.Client) error {
				picture, err := pictureOf(ctx, c)
				switch {
				case err != nil:
					return err
				case svg:
					return picture.SVG(a.out)
				case a.json:
					return a.print(picture, nil)
				}
				if width == 0 {
					width = screen.Columns(a.out)
				}
				return picture.Text(screen.Behind(a.out), drawing.Style{Width: width, Colour: screen.Coloured(a.out, os.Getenv), ASCII: screen.IsTerminal(a.out) && !screen.KnowsUTF8(os.Getenv)})
			})
		},
	}
	cmd.Flags().BoolVar(&svg, "svg", false, "write a picture for a browser")
	cmd.Flags().IntVar(&width, "width", 0, "`columns` of the drawing, 60 or more; 0 for the terminal's")
	return cmd
}

// pictureOf asks an agent for what its host's drawing is made of. Guests without a claim are
// left out where libvirt does not answer.
func pictureOf(ctx context.Context, c *api.Client) (drawing.Host, error) {
	host, err := c.Host(ctx)
	if err != nil {
		return drawing.Host{}, err
	}
	held, err := c.Claims(ctx)
	if err != nil {
		return drawing.Host{}, err
	}
	instances, err := c.Instances(ctx)
	if err != nil && fault.KindOf(err) != fault.Unavailable {
		return drawing.Host{}, err
	}
	return api.Picture(host, held.Claims, instances.Instances), nil
}
