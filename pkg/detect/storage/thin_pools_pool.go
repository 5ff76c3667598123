package storage

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

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
	name, _ := checkkit.OptionalDeviceText(h.Files, "/sys/block/"+disk+"/dm/name") // for people only
	if name == "" {
		name = p.device
	}
	f.Facts["name"] = name
	f.Message = "thin pool " + name + " " + f.Message
	if disk != "" {
		fatal := []string{reasonPoolFull, reasonPoolReadOnly, reasonPoolFailed}
		addImpact(ctx, h, &f, true, slices.Contains(fatal, f.Reason), disk)
	}
	return f
}
