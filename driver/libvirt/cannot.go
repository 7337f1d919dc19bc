package libvirt

import "berth/driver"

// recovers is the first libvirt that goes on with a post-copy that broke.
const recovers = 8_005_000

// cannot says which optional abilities a hypervisor lacks, and why, by the type
// that its daemon gives in capitals (virConnectGetType) and by the daemon's version. What
// is not listed can everything that this package knows; of a new daemon with QEMU nothing
// is listed.
func cannot(hypervisor string, libvirt driver.Version) map[driver.Ability]string {
	if hypervisor != "TEST" {
		if libvirt < recovers {
			return map[driver.Ability]string{driver.AbilityRecovery: option{libvirt: recovers}.lacks(libvirt, 0)}
		}
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
