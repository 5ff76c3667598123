package rules

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// fewerThan matches "N out of M" if N is smaller than M, for M up to 24.
const fewerThan = `(?:0 out of [1-9]\d?|1 out of (?:[2-9]|\d\d)|2 out of (?:[3-9]|\d\d)|3 out of (?:[4-9]|\d\d)|4 out of (?:[5-9]|\d\d)|5 out of (?:[6-9]|\d\d)|6 out of (?:[7-9]|\d\d)|7 out of (?:[89]|\d\d)|8 out of (?:9|\d\d)|` +
	`9 out of \d\d|1[0-4] out of (?:1[5-9]|2\d)|10 out of 1[1-4]|11 out of 1[2-4]|12 out of 1[34]|13 out of 14|1[5-9] out of 2\d|15 out of 1[6-9]|16 out of 1[7-9]|17 out of 1[89]|18 out of 19|20 out of 2[1-4]|21 out of 2[2-4]|22 out of 2[34]|23 out of 24)`

// raidRules: drivers/md/{md,raid0,raid1,raid10,raid5}.c, drivers/md/bcache, drivers/block/drbd. raid0 omits the
// colon.
func raidRules() []Rule {
	const old = `^raid\d+: ` // until 2.6.35; without an array
	const array = `^md/(?:raid\d*|linear|multipath):?(?P<subject>md[\w-]+|[^\s:]+): `
	return []Rule{{
		// An array that could not be started is often removed again, so that there is no state. The check md-arrays
		// knows which arrays the node depends on.
		ID: "md-array-failed", Reason: "RAIDFailed", Domain: Storage, Severity: finding.Warning,
		Advice: "`mdadm --detail /dev/mdN`, `cat /proc/mdstat`; too many disks are gone: bring them back (cable, " +
			"controller) before `mdadm --assemble --force`.",
		Summary: "a RAID array lost more disks than its redundancy allows",
		Patterns: []string{array +
			`(?:Cannot continue operation \(|not enough operational (?:devices|mirrors)|Disk failure on (?P<disk>\S+) detected, failing array|cannot start dirty degraded array|too few disks \(\d+ of \d+\)|failed to run raid set|not enough drives present|Cannot get enough stripes due to memory pressure\. Recovery failed)`,
			`^md: pers->run\(\) failed`,
			old + `(?:not enough operational |cannot start dirty degraded array|failed to run raid set)`},
		Kind: "raid-array", Expiry: UntilBoot,
		// A degraded start matches the next rule; the line that every start logs comes after it.
		Recovery: `^(?:md/(?:raid\d*|linear|multipath):?(?P<subject>md[\w-]+|[^\s:]+): (?:raid level \d+ )?active with \d+ out of \d+ |(?P<subject2>md[\w-]+): detected capacity change from 0 to [1-9])`,
	}, {
		ID: "md-disk-failed", Reason: "RAIDDiskFailed", Domain: Storage, Severity: finding.Warning,
		Advice: "`mdadm --detail /dev/mdN` and `smartctl -a /dev/sdX` of the failed disk; replace: `mdadm " +
			"/dev/mdN --remove /dev/sdX --add /dev/sdY`.",
		Summary: "a RAID array lost a disk and continues without it",
		Patterns: []string{
			array +
				`(?:Disk failure on (?P<disk>[^\s,]+), disabling device|Operation continuing on \d+ devices?|Too many read errors, failing device (?P<device>\S+?)\.?$|\S+: (?:Failing raid device|failing drive|Raid device exceeded read_error threshold))`,
			`^md: fatal superblock inconsistency in (?P<subject3>\S+) -- removing from array`,
			array + `(?:raid level \d+ )?active with ` + fewerThan + ` (?:mirrors|devices)`, // at start
			`^md: kicking non-fresh (?P<subject2>\S+) from array!`,
			`^md: (?P<subject4>\S+) does not have a valid v\d\.\d+ superblock, not importing!`,
			old + `(?:Disk failure on (?P<subject6>[^\s,]+), disabling device|Operation continuing on \d+ devices?)`,
			`^md: disabled device (?P<subject5>\S+), could not read superblock`,
		},
		Kind: "raid-array", Report: "md", Expiry: UntilBoot, ConfirmedBy: "md-arrays",
	}, {
		ID: "md-read-error", Reason: "RAIDReadError", Domain: Storage, Severity: finding.Warning,
		Advice: "`smartctl -a /dev/sdX`; `mdadm --detail /dev/mdN` shows whether the array still has it; replace " +
			"the disk.",
		Summary: "a RAID array could neither read nor repair some of its blocks",
		Patterns: []string{array +
			`(?:\S+: unrecoverable I/O (?:read )?error for block|read error NOT corrected|read error not correctable|read error on replacement device|read correction write failed|unable to read back corrected sectors|recovery aborted due to read error|\d+ read_errors > \d+ stripes)`,
			old + `(?:\S+: )?(?:unrecoverable I/O (?:read )?error for block|read error (?:NOT corrected|not correctable))`,
			`^md: (?:super_written gets error=-?\d+|\S+ flush io error -?\d+)`},
		Kind: "raid-array", Expiry: 24 * time.Hour,
	}, {
		ID: "md-read-corrected", Reason: "RAIDReadCorrected", Domain: Storage, Severity: finding.Info,
		Advice: "The data was rewritten from the other disks. `smartctl -a /dev/sdX`; many of them: replace the " +
			"disk before it fails.",
		Summary: "a RAID array could not read some blocks of a disk and read them from another; the disk may be " +
			"about to fail",
		Literals: []string{": read error corrected (", ": redirecting sector ", ": rescheduling sector "},
		Patterns: []string{array +
			`(?:(?P<disk>\S+): )?(?:read error corrected \(\d+ sectors at|redirecting sector \d+ to (?:other|another) mirror|rescheduling sector \d+$)`,
			old + `(?:\S+: )?(?:rescheduling|redirecting) sector \d+`},
		Kind: "raid-array", Escalate: Rate{10, time.Hour}, EscalateSeverity: finding.Warning,
		Expiry: 24 * time.Hour,
	}, {
		ID: "bcache-error", Reason: "BcacheError", Domain: Storage, Severity: finding.Warning,
		Advice: "`smartctl -a` of the cache's and the backing disk; `cat /sys/block/bcacheN/bcache/state`: dirty " +
			"data is only on the cache.",
		Summary:  "a bcache device or its cache disk fails",
		Patterns: []string{`^bcache: (?:\S+\(\) )?(?:.*: )?(?:IO error on|device offline for \d+ seconds|disable I/O request due to backing device offline|bad csum|too many IO errors|stop \S+: too many IO errors|error on \S+: .*disabling caching|I/O disabled on cached dev|.*[Jj]ournal io error)`},
		Kind:     NodeKind, Expiry: 24 * time.Hour,
	}}
}

// mapperRules: drivers/md/dm-{mpath,thin,integrity,verity-target,snap,raid1,raid}.c. Since 4.20 the number of the
// multipath device comes before "Failing path".
func mapperRules() []Rule {
	const thin = `^device-mapper: thin: (?:(?P<subject>\d+:\d+): )?` // without a device until 3.10
	return []Rule{{
		ID: "multipath-path-failed", Reason: "MultipathPathFailed", Domain: Storage, Severity: finding.Warning,
		Advice: "`multipath -ll` shows the paths that are left; then the link (`cat " +
			"/sys/class/fc_host/host*/port_state`, `iscsiadm -m session`).",
		Summary: "one of the paths to a disk failed",
		Patterns: []string{`^device-mapper: multipath: (?:(?P<device>\d+:\d+): )?Failing path (?P<subject>\S+?)\.?$`,
			`^device-mapper: multipath: Could not failover (?:the )?device`},
		Kind: "path", Expiry: 24 * time.Hour,
		Recovery: `^device-mapper: multipath: (?:\d+:\d+: )?Reinstating path (?P<subject>\S+?)\.?$`,
	}, {
		ID: "multipath-no-path", Reason: "MultipathNoPath", Domain: Storage, Severity: finding.Warning,
		Advice: "`multipath -ll`: no path is left; mend the fabric or session, then `multipath -r`; filesystems " +
			"on it must be unmounted and checked.",
		Summary:  "no path to a disk is left: queued I/O fails",
		Patterns: []string{`^device-mapper: multipath: (?:\d+:\d+: )?queue_if_no_path timeout on (?P<subject>\S+), failing queued IO`},
		Kind:     "device", Expiry: 24 * time.Hour,
	}, {
		ID: "thin-pool-full", Reason: "ThinPoolFull", Domain: Storage, Severity: finding.Warning,
		Advice: "`lvs -a -o+data_percent,metadata_percent`: `lvextend -L+10G VG/POOL` (metadata: `lvextend " +
			"--poolmetadatasize`); a damaged pool: `lvconvert --repair VG/POOL`.",
		Summary: "a thin pool is full or damaged: writes to its volumes wait or fail",
		Patterns: []string{
			thin + `switching pool to (?P<mode>out-of-data-space|read-only|fail)`,
			thin + `(?:no free (?:data|metadata) space available|aborting current metadata transaction|failed to abort metadata transaction|failed to set 'needs_check' flag|unable to service pool target messages in READ_ONLY or FAIL mode|(?:alloc_data_block|dm_thin_find_block)\(\) failed: error = -?\d+)`,
			thin + `metadata operation '\w+' failed: error = -?\d+`,
			thin + `No free metadata blocks`,
		},
		Kind: "thin-pool", Report: "thin", Expiry: UntilBoot, ConfirmedBy: "thin-pools",
		Recovery: thin + `switching pool to write mode`,
	}, {
		ID: "thin-pool-low", Reason: "ThinPoolLow", Domain: Storage, Severity: finding.Warning,
		Advice: "`lvs -a -o+data_percent,metadata_percent`; `lvextend` the pool, or `fstrim` the filesystems on " +
			"it.",
		Summary:  "a thin pool has little space left",
		Patterns: []string{thin + `reached low water mark for (?P<what>data|metadata) device`},
		Kind:     "thin-pool", Expiry: 24 * time.Hour, ConfirmedBy: "thin-pools",
	}, {
		ID: "device-mapper-error", Reason: "DeviceMapperError", Domain: Storage, Severity: finding.Warning,
		Advice: "`dmsetup status` and `dmsetup table` of the device; verity and integrity: the data on the disk " +
			"was changed, `smartctl -a /dev/sdX`.",
		Summary: "the device mapper detected corrupt data, or lost a mirror or a snapshot",
		Literals: []string{
			"device-mapper: verity: ", "device-mapper: integrity: ", "device-mapper: snapshots: ",
			"device-mapper: raid1: ", "device-mapper: raid: Failed", "device-mapper: crypt: ",
			"device-mapper: space map ", "device-mapper: block manager: ", "device-mapper: btree",
			"device-mapper: cache",
			"device-mapper: thin metadata: ", "device-mapper: array: ", "device-mapper: dirty region log: ",
		},
		Patterns: []string{
			`^(?:trusted_key: )?device-mapper: verity: (?P<subject>[\w:-]+): (?:data|metadata) block \d+ is corrupted`,
			`^(?:trusted_key: )?device-mapper: (?:integrity|crypt): (?P<subject2>\S+?): (?:Checksum failed at sector|INTEGRITY AEAD ERROR)`,
			`^(?:trusted_key: )?device-mapper: (?:integrity: Checksum failed|crypt: INTEGRITY AEAD ERROR)`,
			`^device-mapper: snapshots: (?:Invalidating snapshot|Corruption detected|Snapshot is marked invalid)`,
			`^device-mapper: raid1: (?:.*Mirror (?:read|write) failed|All (?:sides of mirror|replicated volumes) (?:have failed|dead)|Primary mirror \(\S+\) failed|A (?:read|write) failure occurred on a mirror device|log device \S+ has failed)`,
			`^device-mapper: raid: Failed to (?:read superblock|load bitmap)`,
			`^device-mapper: (?:space map \w+|block manager|btree(?: \w+)?|cache metadata|thin metadata|array): .*(?:failed|corrupt|validator check|out of bounds|unable to allocate|couldn't read)`,
			`^device-mapper: cache: (?P<subject3>\S+): (?:metadata operation '\w+' failed|aborting current metadata transaction|failed to abort metadata|switching cache to (?:read-only|fail) mode|failed to set 'needs_check'|migration failed; |unable to service cache target messages in READ_ONLY or FAIL mode|unable to resume a failed-loaded cache)`,
			`^device-mapper: (?:raid1: (?:Read failure on mirror device|Write error during recovery)|snapshots: (?:(?:Read|Write) error.*|Flush after merge failed): ?shutting down merge|integrity: Error on |verity: \S+: reached maximum errors|dirty region log: .*Failed to (?:read|write) header)`,
		},
		Kind: "device", Expiry: 24 * time.Hour,
	}}
}
