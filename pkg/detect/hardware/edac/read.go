package edac

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const (
	edacRoot       = "/sys/devices/system/edac"
	maxEDACModules = 4096
)

// edacCounts are those of one module since its driver was loaded.
type edacCounts struct {
	corrected, uncorrected uint64
	dir                    string
}

// edacReader collects modules by their names.
type edacReader struct {
	files   host.Files
	modules map[string]edacCounts
	doubts  map[finding.Subject]error
}

// readEDAC reads the counts of all modules. It is empty if no driver reports any.
func readEDAC(files host.Files) (map[string]edacCounts, map[finding.Subject]error, error) {
	r := edacReader{files: files, modules: make(map[string]edacCounts), doubts: make(map[finding.Subject]error)}
	devices, err := r.folders(edacRoot)
	if err != nil {
		return nil, nil, err
	}
	for _, device := range devices {
		dir := path.Join(edacRoot, device)
		switch device {
		case "pci", "power": // PCI parity, which broken devices report wrongly; power management
		case "mc":
			err = r.controllers(dir)
		default:
			err = r.caches(dir)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return r.modules, r.doubts, nil
}

// folders lists the entries of dir that may be folders. A dir that does not exist has none.
func (r edacReader) folders(dir string) ([]string, error) {
	entries, _, err := r.files.Entries(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && e.Name != "power" {
			names = append(names, e.Name)
		}
	}
	slices.Sort(names)
	return names, err
}

func (r edacReader) controllers(dir string) error {
	controllers, err := r.folders(dir)
	if err != nil {
		return err
	}
	for _, mc := range controllers {
		if !strings.HasPrefix(mc, "mc") {
			continue
		}
		below, err := r.folders(path.Join(dir, mc))
		if err != nil {
			return err
		}
		for _, module := range below {
			if !strings.HasPrefix(module, "dimm") && !strings.HasPrefix(module, "rank") {
				continue // csrow: the same counts again
			}
			at := path.Join(dir, mc, module)
			label, err := r.files.Text(path.Join(at, "dimm_label"))
			if err != nil || label == "" {
				label = mc + "/" + module
			}
			if err := r.add(checkkit.Sanitize(label, checkkit.MaxLine), at, "dimm_ce_count",
				"dimm_ue_count"); err != nil {
				return err
			}
		}
		if err := r.add(mc+": module unknown", path.Join(dir, mc), "ce_noinfo_count", "ue_noinfo_count"); err != nil {
			return err
		}
	}
	return nil
}

// caches adds the blocks of a device other than memory.
func (r edacReader) caches(dir string) error {
	instances, err := r.folders(dir)
	if err != nil {
		return err
	}
	for _, instance := range instances {
		blocks, err := r.folders(path.Join(dir, instance))
		if err != nil {
			return err
		}
		for _, block := range blocks {
			if err := r.add(block, path.Join(dir, instance, block), "ce_count", "ue_count"); err != nil {
				return err
			}
		}
	}
	return nil
}

// add adds the counts in dir to those of a name, which several may share. A folder without counts is no module.
func (r edacReader) add(name, dir, correctedFile, uncorrectedFile string) error {
	if len(r.modules) >= maxEDACModules {
		return fmt.Errorf("list %s: more than %d modules", edacRoot, maxEDACModules)
	}
	corrected, err := checkkit.ReadCount(r.files, path.Join(dir, correctedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	uncorrected, err2 := checkkit.ReadCount(r.files, path.Join(dir, uncorrectedFile))
	if err := errors.Join(err, err2); err != nil {
		r.doubts[finding.Subject{Kind: "memory-module", Name: name}] = err
		return nil //nolint:nilerr // a doubt of this module alone
	}
	counts := r.modules[name]
	counts.corrected, counts.uncorrected, counts.dir = counts.corrected+corrected, counts.uncorrected+uncorrected, dir
	r.modules[name] = counts
	return nil
}
