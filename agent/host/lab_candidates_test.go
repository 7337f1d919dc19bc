package host_test

import (
	"context"

	"berth/placementclient"
)

// What a conductor asks of Placement to find a destination. The lab's conductors
// are told theirs, and ask nothing of it.

func (p *placement) Providers(context.Context, placementclient.ProviderFilter) ([]placementclient.ResourceProvider, error) {
	return nil, nil
}

func (p *placement) KnownTraits(_ context.Context, names []string) ([]string, error) {
	return names, nil
}

func (p *placement) KnownClasses(_ context.Context, names []string) ([]string, error) {
	return names, nil
}

func (p *placement) Aggregates(context.Context, string) (placementclient.Aggregates, error) {
	return placementclient.Aggregates{}, nil
}
