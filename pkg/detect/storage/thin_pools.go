package storage

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// thin-pools asks the device mapper, in a child process, for the status and the table of each thin pool, as `dmsetup
// status --noflush --target thin-pool` and `dmsetup table` print them:
//
//	1 4161/16384 812/25600 - rw discard_passdown queue_if_no_space - 1024
//	253:2 253:3 128 1024 1 skip_block_zeroing
//
// Status: transaction, used/all blocks of metadata, used/all blocks of data, held root, mode (rw, ro,
// out_of_data_space), discards, the action when it is full, needs_check or -, low water mark of the metadata (Linux
// 5.3); or "Fail" or "Error" alone. Table: metadata device, data device, sectors of a block, low water mark of the data
// in blocks.
//
// https://docs.kernel.org/admin-guide/device-mapper/thin-provisioning.html
//
// A request takes a process, so it is only made if a device could be a pool: a pool has exactly two devices below it,
// and LVM's own are named -tpool. If none of those is one, the next request is made after an hour or when the set has
// changed.

// ThinPoolsSettings are the thresholds of thin-pools. A raised finding is kept until five percent below.
type ThinPoolsSettings struct {
	DataPercent float64 `yaml:"dataPercent"`
	// lower: exhausted metadata does more harm, and cannot be repaired online
	MetadataPercent float64 `yaml:"metadataPercent"`
}

// DefaultThinPoolsSettings returns the default settings.
func DefaultThinPoolsSettings() ThinPoolsSettings {
	return ThinPoolsSettings{DataPercent: 85, MetadataPercent: 75}
}

const (
	noPoolsRefresh = time.Hour
	poolMargin     = 5 // percent below a threshold at which a finding is cleared

	reasonPoolFull     = "ThinPoolFull"
	reasonPoolReadOnly = "ThinPoolReadOnly"
	reasonPoolFailed   = "ThinPoolFailed"
	reasonPoolDamaged  = "ThinPoolNeedsCheck"
	reasonPoolLow      = "ThinPoolLow"
)

// ThinPools finds thin pools that are full, nearly so, or damaged.
func ThinPools(s ThinPoolsSettings) detect.Check {
	state := &poolState{settings: s}
	return detect.Check{
		ID: "thin-pools", Domain: "storage",
		Summary: "a thin pool is full, nearly full, or damaged",
		Advice: "See `lvs -a -o+metadata_percent` or `dmsetup status --noflush --target thin-pool`. Full: extend it " +
			"(`lvextend -L+10G VG/POOL`, `--poolmetadatasize +1G` for the metadata) or `fstrim` the filesystems on " +
			"it. Read-only or needs check: stop what uses it and run `lvconvert --repair VG/POOL`; extending does " +
			"not help there.",
		Doc: detect.Doc{
			Reads: []string{"/sys/block/dm-*/{dm/uuid,dm/name,slaves}", mapperControl +
				" (DM_LIST_DEVICES, DM_TABLE_STATUS with DM_NOFLUSH_FLAG) in a child process"},
			Why: "All volumes of a pool fail together when it is full, although each of them looks half empty; the " +
				"runtime's own layers may be among them.",
			Faults: []detect.Fault{
				{Reason: reasonPoolFull, Severity: finding.Fatal, When: "mode out_of_data_space, or no free block of " +
					"data or metadata: writes wait for a minute (dm_thin_pool.no_space_timeout), then fail; warning, " +
					"fatal where the filesystem of /, kubelet or the runtime is on it"},
				{Reason: reasonPoolReadOnly, Severity: finding.Fatal, When: "mode ro, after a metadata error: it " +
					"must be repaired offline (thin_check, thin_repair); fatal as above"},
				{Reason: reasonPoolFailed, Severity: finding.Fatal,
					When: "status Fail or Error: no I/O at all; fatal as above"},
				{Reason: reasonPoolDamaged, Severity: finding.Warning, When: "its metadata needs a check: it will " +
					"turn read-only at the next activation"},
				{Reason: reasonPoolLow, Severity: finding.Warning, When: "85 % of the data or 75 % of the metadata " +
					"is used, above the usual thin_pool_autoextend_threshold of 70 to 80; or less is free than the " +
					"pool's own low water mark"},
			},
			FalseAlarms: "A pool that is kept nearly full on purpose: raise the threshold, and the pool's low water " +
				"mark.",
		},
		Condition: detect.StorageProblem(),
		Every:     time.Minute,
		Wakes:     []detect.Wake{checkkit.KernelWake()},
		Run:       state.run,
	}
}

// poolState keeps the devices that are no pools.
type poolState struct {
	settings ThinPoolsSettings
	none     []string // the candidates of the last request that found no pool
	asked    time.Duration
}

func (m *poolState) run(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	candidates, err := poolCandidates(h.Files)
	if err != nil {
		return nil, err
	}
	now := h.Clock().SinceBoot
	if len(candidates) == 0 || slices.Equal(candidates, m.none) && now-m.asked < noPoolsRefresh {
		return nil, finding.NoneLeft("there is no thin pool")
	}
	pools, err := askMapper(ctx, h, probe.ProbeThinPools, parseThinPools)
	if err != nil {
		return nil, err
	}
	if len(pools) == 0 {
		m.none, m.asked = candidates, now
		return nil, finding.NoneLeft("there is no thin pool")
	}
	m.none = nil
	var findings []finding.Finding
	for _, p := range pools {
		if f, bad := p.evaluate(m.settings); bad {
			findings = append(findings, p.explain(ctx, h, f))
		}
	}
	return findings, nil
}

// poolCandidates lists the mapped devices that may be thin pools, as "name uuid".
func poolCandidates(files host.Files) ([]string, error) {
	names, err := checkkit.BlockNames(files)
	if err != nil {
		return nil, err
	}
	var candidates []string
	for _, name := range names {
		if !strings.HasPrefix(name, "dm-") {
			continue
		}
		uuid, err := checkkit.OptionalDeviceText(files, "/sys/block/"+name+"/dm/uuid")
		if err != nil {
			return nil, err
		}
		foreign := strings.HasPrefix(uuid, "CRYPT-") || strings.HasPrefix(uuid, multipathUUID) ||
			strings.HasPrefix(uuid, "LVM-") && !strings.HasSuffix(uuid, "-tpool")
		slaves, err := files.List("/sys/block/" + name + "/slaves")
		if !foreign && err == nil && len(slaves) == 2 {
			candidates = append(candidates, name+" "+uuid)
		}
	}
	return candidates, nil
}
