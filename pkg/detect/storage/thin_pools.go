package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
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

// thinPool is one pool.
type thinPool struct {
	device                    string // major:minor, as the kernel's log names pools
	failed                    bool   // its status is Fail or Error alone
	data, metadata            poolSpace
	mode                      string // rw, ro, out_of_data_space
	needsCheck, failsWhenFull bool
}

// poolSpace is counted in blocks.
type poolSpace struct {
	used, all uint64
	lowWater  uint64 // the pool's own minimum of free blocks; 0 for none
}

func (s poolSpace) percent() float64 { return float64(s.used) / float64(max(s.all, 1)) * 100 }
func (s poolSpace) free() uint64     { return s.all - min(s.used, s.all) }

// parseThinPools parses lines of "major:minor", a tab, the status, a tab, the table.
func parseThinPools(text string) ([]thinPool, error) {
	var pools []thinPool
	for line := range strings.Lines(text) {
		parts := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(parts) != 3 {
			return nil, checkkit.InLine(line, errors.New("want a device, a status and a table"))
		}
		p, err := parseThinPool(strings.Fields(parts[1]), strings.Fields(parts[2]))
		if err != nil {
			return nil, checkkit.InLine(line, err)
		}
		p.device = checkkit.Sanitize(parts[0], 32)
		pools = append(pools, p)
	}
	return pools, nil
}

func parseThinPool(status, table []string) (thinPool, error) {
	if len(status) == 1 && (status[0] == "Fail" || status[0] == "Error") {
		return thinPool{failed: true}, nil
	}
	if len(status) < 7 { // Linux before 4.5 has no eighth field
		return thinPool{}, fmt.Errorf("status has %d fields", len(status))
	}
	p := thinPool{mode: checkkit.Sanitize(status[4], 32), failsWhenFull: status[6] == "error_if_no_space"}
	for text, into := range map[string]*poolSpace{"m" + status[1]: &p.metadata, "d" + status[2]: &p.data} {
		used, all, ok := strings.Cut(text[1:], "/")
		var err, errAll error
		into.used, err = strconv.ParseUint(used, 10, 63)
		into.all, errAll = strconv.ParseUint(all, 10, 63)
		if !ok || err != nil || errAll != nil || into.used > into.all {
			return thinPool{}, fmt.Errorf("used/all blocks %q", text[1:])
		}
	}
	p.needsCheck = len(status) > 7 && status[7] == "needs_check"
	if len(status) > 8 {
		p.metadata.lowWater, _ = strconv.ParseUint(status[8], 10, 63) // absent, or of a future format: none
	}
	if len(table) > 3 {
		p.data.lowWater, _ = strconv.ParseUint(table[3], 10, 63)
	}
	return p, nil
}

// evaluate returns the most severe fault.
func (p thinPool) evaluate(s ThinPoolsSettings) (finding.Finding, bool) {
	f := finding.Finding{
		Subject: finding.Subject{Kind: "thin-pool", Name: p.device}, Severity: finding.Warning,
		Facts: map[string]string{
			"dataPercent":     fmt.Sprintf("%.1f", p.data.percent()),
			"metadataPercent": fmt.Sprintf("%.1f", p.metadata.percent()), "mode": p.mode,
		},
	}
	whenFull := "writes wait for up to a minute, then fail"
	if p.failsWhenFull {
		whenFull = "writes fail"
	}
	used := fmt.Sprintf("%.1f %% of its data and %.1f %% of its metadata are used", p.data.percent(),
		p.metadata.percent())
	switch {
	case p.failed:
		f.Reason, f.Message, f.Facts = reasonPoolFailed, "failed: it takes no I/O", map[string]string{}
	case p.mode == "out_of_data_space", p.data.free() == 0, p.metadata.free() == 0:
		f.Reason, f.Message = reasonPoolFull, "is full, "+whenFull+"; "+used
	case p.mode == "ro":
		f.Reason, f.Message = reasonPoolReadOnly, "is read-only after a metadata error; "+used
	case p.needsCheck:
		f.Reason, f.Message = reasonPoolDamaged, "has metadata that needs a check; "+used
	default:
		low, keep := p.low(s)
		if !low && !keep {
			return finding.Finding{}, false
		}
		f.Reason, f.Message, f.BelowRaise = reasonPoolLow, "has little space left: "+used, !low
	}
	return f, true
}

// low reports whether space is low, and whether it is low enough to keep a finding.
func (p thinPool) low(s ThinPoolsSettings) (low, keep bool) {
	for _, of := range []struct {
		space   poolSpace
		percent float64
	}{{p.data, s.DataPercent}, {p.metadata, s.MetadataPercent}} {
		if of.percent > 0 {
			low = low || of.space.percent() >= of.percent
			keep = keep || of.space.percent() >= of.percent-poolMargin
		}
		low = low || of.space.lowWater > 0 && of.space.free() <= of.space.lowWater
	}
	return low, keep
}

// explain adds the pool's name, the node's data on it, and the affected pods.
func (p thinPool) explain(ctx context.Context, h *host.Host, f finding.Finding) finding.Finding {
	disk := ""
	if target, err := h.Files.Link("/sys/dev/block/" + p.device); err == nil {
		disk = path.Base(target)
	}
	alias, _ := checkkit.OptionalDeviceText(h.Files, "/sys/block/"+disk+"/dm/name") // for people only
	name := cmp.Or(alias, p.device)
	f.Facts["name"] = name
	f.Message = "thin pool " + name + " " + f.Message
	if disk != "" {
		fatal := []string{reasonPoolFull, reasonPoolReadOnly, reasonPoolFailed}
		addImpact(ctx, h, &f, true, slices.Contains(fatal, f.Reason), disk)
	}
	return f
}
