package admission

import (
	"context"
	"errors"

	"berth/driver"
	"berth/internal/fault"
)

// Domains is what is asked of the hypervisor (driver.Driver).
type Domains interface {
	Domains(ctx context.Context) ([]driver.Domain, error)
	XML(ctx context.Context, uuid string, what driver.Document) (string, error)
}

// Others reads the domain XMLs of all instances that are defined or run here but one, each as
// it runs and as it will start. It asks the hypervisor, once or twice for each.
func Others(ctx context.Context, d Domains, but string) ([]Other, error) {
	all, err := d.Domains(ctx)
	if err != nil {
		return nil, err
	}
	var out []Other
	for _, dom := range all {
		if dom.UUID == but {
			continue
		}
		forms := []driver.Document{driver.Live}
		if dom.Active() && dom.Persistent {
			forms = append(forms, driver.Persistent)
		}
		for _, form := range forms {
			text, err := d.XML(ctx, dom.UUID, form)
			if errors.Is(err, fault.NotFound) {
				continue // it has gone meanwhile
			}
			if err != nil {
				return nil, fault.Wrap(err, "read what instance %s uses", dom.Name)
			}
			out = append(out, Other{Name: dom.Name, XML: text, Off: !dom.Active()})
		}
	}
	return out, nil
}
