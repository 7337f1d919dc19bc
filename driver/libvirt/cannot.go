package libvirt

import "berth/driver"

// cannot says which optional abilities a hypervisor lacks, and why, by the type
// that its daemon gives in capitals (virConnectGetType). What is not listed can
// everything that this package knows; nothing is listed for QEMU.
func cannot(hypervisor string) map[driver.Ability]string {
	if hypervisor != "TEST" {
		return nil
	}
	const (
		moves = "libvirt's test driver has no peer-to-peer migration"
		runs  = "libvirt's test driver runs no guests"
	)
	return map[driver.Ability]string{
		driver.AbilityLiveMigration: moves,
		driver.AbilityStorageCopy:   moves,
		driver.AbilityPostCopy:      moves,
		driver.AbilityRecovery:      moves,
		driver.AbilityGuestAgent:    runs,
		driver.AbilityStatistics:    runs + ", so it counts nothing",
	}
}
