package hwdiscovery

import "fmt"

// Files that must be there and sound. An absent, truncated or garbled one
// degrades the host, and its reason names it.
//
//	cpu*/topology             for every online CPU, if any CPU has one
//	core_cpus (mask or list), thread_siblings on kernels before 5.3
//	                          for every CPU, if any CPU has one
//	package_cpus (mask or list), core_siblings on kernels before 5.3; die_cpus
//	                          for every CPU, if any CPU has one
//	physical_package_id, core_id, die_id
//	                          for every CPU, if any CPU has one
//	node*/cpumap, or cpulist  for every node
//	node*/meminfo             for every node
//	node*/distance            for every node, if any node has one
//	node*/hugepages/*         for every node, if any node has them
//	hugepages-*/nr_hugepages  for every pool that has a directory
//	vendor, device, class     for every PCI function
//	numa_node                 for every PCI function, if any has one
//	sriov_totalvfs, physfn    for every function that shows another sign of SR-IOV
//	available_instances       for every mdev_supported_types/*
//	proc/meminfo              on hosts without nodes, whose only memory it is, and
//	                          on those with a node of no CPUs, which may be a GPU's
//
// Whole folders that are absent or empty, as where nothing is mounted there:
//
//	sys/devices/system/cpu    degrades; the CPUs come from /proc
//	sys/devices/system/node   one cell; degrades if a CPU has a link to its node
//	sys/bus/pci/devices       no device; degrades if proc/bus/pci/devices has one
const (
	cpuDir       = "sys/devices/system/cpu"
	nodeDir      = "sys/devices/system/node"
	hugepagesDir = "sys/kernel/mm/hugepages"
	pciDir       = "sys/bus/pci/devices"
	mdevDir      = "sys/bus/mdev/devices"
	procMeminfo  = "proc/meminfo"
	procPCI      = "proc/bus/pci/devices"
)

// Files that may be absent. What stands in for them:
//
//	cpu/online                each cpu*/online, and a CPU without one is online
//	cpu/present, cpu/offline  nothing: they only cross-check cpu/online
//	cpu/isolated              no CPU is isolated
//	node/online               the node directories
//	sys/kernel/mm/hugepages   HugePages_Total and Hugepagesize of proc/meminfo
//	free_hugepages, MemFree   free pages are unknown, shown as none
//	proc/cpuinfo              nothing: it cross-checks cpu/online and tells AMD's compute units
//	proc/driver/nvidia/gpus   no node is a GPU's
//	cpu*/cache/index*/{level,type,shared_cpu_list,shared_cpu_map}
//	                          the CPU is in no last-level cache
//	driver, iommu_group, subsystem_vendor, subsystem_device, vpd, mdev_supported_types
//	                          the field stays empty
//	sys/bus/mdev/devices      no mediated device is there
//	mdev_type                 the type of a mediated device stays empty
//	config, power/runtime_status
//	                          the function is taken to answer
//
// A garbled one of these degrades the host if it would have changed cells, CPUs
// or SR-IOV, and is a remark else.
const (
	cpuOnline   = cpuDir + "/online"
	cpuOffline  = cpuDir + "/offline"
	cpuPresent  = cpuDir + "/present"
	cpuIsolated = cpuDir + "/isolated"
	nodeOnline  = nodeDir + "/online"
	procCPUInfo = "proc/cpuinfo"
	procStat    = "proc/stat"
	nvidiaGPUs  = "proc/driver/nvidia/gpus"
)

func cpuFile(cpu int, name string) string     { return fmt.Sprintf("%s/cpu%d/%s", cpuDir, cpu, name) }
func cpuTopology(cpu int, name string) string { return cpuFile(cpu, "topology/"+name) }
func cacheFile(cpu, index int, name string) string {
	return cpuFile(cpu, fmt.Sprintf("cache/index%d/%s", index, name))
}
func nodeFile(node int, name string) string { return fmt.Sprintf("%s/node%d/%s", nodeDir, node, name) }
func pciFile(address fmt.Stringer, name string) string {
	return pciDir + "/" + address.String() + "/" + name
}
