package agent

import (
	"errors"
	"maps"
	"slices"

	"berth/internal/config"
)

// CheckConfig looks at what a configuration names beside its own values: flavor files, and the
// users and groups of [rights]. It gives the flavors that are good, and every fault; it starts
// nothing, and asks neither libvirt nor Placement.
func CheckConfig(c config.Config) (flavors []string, err error) {
	list, flavorErr := readFlavors(c.Agent.FlavorsDir)
	_, rightsErr := readGrants(c.Rights, machineAccounts())
	return slices.Sorted(maps.Keys(list)), errors.Join(flavorErr, rightsErr)
}
