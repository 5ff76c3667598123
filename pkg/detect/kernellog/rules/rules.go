package rules

import (
	"slices"
)

// Kernel returns the rules for the kernel's log, in the order in which they are tried: the first match wins. Crashes of
// programs come first because their lines start with a name that the program chose.
func Kernel() []Rule {
	return slices.Concat(
		crashRules(),
		panicRules(),
		oopsRules(),
		lockupRules(),
		clockRules(),
		oomRules(),
		memoryRules(),
		machineCheckRules(),
		firmwareErrorRules(),
		pcieRules(),
		temperatureRules(),
		interruptRules(),
		powerRules(),
		usbRules(),
		ext4Rules(),
		xfsRules(),
		btrfsRules(),
		bcachefsRules(),
		filesystemRules(),
		nfsRules(),
		smbRules(),
		cephRules(),
		clusterFilesystemRules(),
		blockRules(),
		loopRules(),
		scsiRules(),
		controllerRules(),
		driverRules(),
		ataRules(),
		mmcRules(),
		nvmeRules(),
		raidRules(),
		mapperRules(),
		iscsiRules(),
		targetRules(),
		nvmeFabricRules(),
		remoteBlockRules(),
		networkTableRules(),
		linkRules(),
		bridgeRules(),
		gpuRules(),
		deviceRules(),
		limitRules(),
		subsystemRules(), // for lines without a rule of their own
	)
}
