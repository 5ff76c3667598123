package daemon

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/internal/atomicfile"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// Source is the origin of the daemon's configuration.
type Source struct {
	// File is read at the start and at each reload. If empty: config.DefaultFile, if that exists.
	File string

	// LastGood names the file that keeps the last configuration that worked. If it is set and File is invalid, the
	// agent starts with that configuration, or with the defaults: a node whose agent refuses to start is not observed.
	// If it is empty, the agent does not start with an invalid configuration.
	LastGood string

	Over   func(config.Config) config.Config // applies the command line over the file; may be nil
	Reload <-chan os.Signal                  // each signal asks for a reload; may be nil
}

// revision is one configuration.
type revision struct {
	cfg  config.Config
	data []byte // of the file
	from string // origin, for messages
	file bool   // from Source.File, as the operator wants

	monitors config.Monitors // of node-problem-detector, named in the configuration
}

// read reads the configuration that the operator wants.
func (s Source) read() (revision, error) {
	name, data, err := config.Read(s.File)
	if err != nil {
		return revision{data: data}, err
	}
	return s.parse(name, data)
}

func (s Source) parse(name string, data []byte) (revision, error) {
	cfg, err := config.Parse(name, data)
	if err != nil {
		return revision{data: data}, err
	}
	if s.Over != nil {
		cfg = s.Over(cfg)
	}
	return revision{cfg: cfg, data: data, from: name, file: true,
		monitors: config.ReadMonitors(cfg.NodeProblemDetector)}, nil
}

// same reports whether two revisions have the same content.
func (r revision) same(o revision) bool {
	return bytes.Equal(r.data, o.data) && r.monitors.Digest == o.monitors.Digest
}

// newlyBroken returns why a revision cannot replace another: a node-problem-detector file that ran before, or is new,
// is broken. At a start such a file disables only itself.
func (r revision) newlyBroken(before revision) error {
	var problems []error
	for _, err := range r.monitors.Broken {
		if !slices.ContainsFunc(before.monitors.Broken, func(b error) bool { return b.Error() == err.Error() }) {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// fallbacks returns the configurations to start with instead, the best first. With any of them the agent releases no
// object, because the invalid configuration may ask for exactly that.
func (s Source) fallbacks() []revision {
	if s.LastGood == "" {
		return nil
	}
	var found []revision
	if data, err := os.ReadFile(s.LastGood); err == nil {
		if r, err := s.parse(s.LastGood, data); err == nil {
			r.from = "the last good configuration"
			found = append(found, r)
		}
	}
	if r, err := s.parse("", nil); err == nil {
		r.from = "the defaults"
		found = append(found, r)
	}
	for i := range found {
		found[i].file = false
		found[i].cfg.Remediate = dryRun(found[i].cfg.Remediate)
	}
	return found
}

// dryRun returns settings with which releases are planned but not done.
func dryRun(s release.Settings) release.Settings {
	s.Kinds = maps.Clone(s.Kinds)
	for kind, mode := range s.Kinds {
		if mode == release.On {
			s.Kinds[kind] = release.DryRun
		}
	}
	if s.Mode == release.On {
		s.Mode = release.DryRun
	}
	return s
}

// keep stores r as the last good configuration. A crash leaves the old one or the new one.
func (s Source) keep(r revision) error {
	if s.LastGood == "" || !r.file {
		return nil
	}
	if old, err := os.ReadFile(s.LastGood); err == nil && bytes.Equal(old, r.data) {
		return nil
	}
	err := os.MkdirAll(filepath.Dir(s.LastGood), 0o700)
	if err == nil {
		err = atomicfile.WriteData(s.LastGood, r.data)
	}
	if err != nil {
		return fmt.Errorf("keep the last good configuration: %w", err)
	}
	return nil
}

// file returns the name of the configuration file for messages.
func (s Source) file() string { return cmp.Or(s.File, config.DefaultFile) }
