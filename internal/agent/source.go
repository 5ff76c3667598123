package agent

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/nodeagent/nodeagent/internal/config"
	"github.com/nodeagent/nodeagent/pkg/remediate"
)

// Source says where the daemon's configuration comes from.
type Source struct {
	// File is read at the start and at each reload. Empty: config.DefaultFile, where it exists.
	File string

	// LastGood names the file that keeps the last configuration which the agent worked with. Where it is set, the agent
	// starts with that one, or with the defaults, when File is wrong: nobody looks after a node whose agent refuses to
	// start. Where it is empty, nothing is started with a configuration that is wrong.
	LastGood string

	Over   func(config.Config) config.Config // what the command line says over the file; may be nil
	Reload <-chan os.Signal                  // each signal is a wish to read the configuration anew; may be nil
}

// revision is one configuration.
type revision struct {
	cfg  config.Config
	data []byte // what the file said
	from string // for people: where it is from
	file bool   // from Source.File: what the operator wants

	monitors config.Monitors // of node-problem-detector, which the configuration names
}

// read reads what the operator wants.
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

// same reports whether two editions ask for the same.
func (e revision) same(o revision) bool {
	return bytes.Equal(e.data, o.data) && e.monitors.Digest == o.monitors.Digest
}

// newlyBroken returns why an edition cannot replace another: a file of node-problem-detector that was run, or is new,
// is broken. At a start such a file costs only itself.
func (e revision) newlyBroken(before revision) error {
	var problems []error
	for _, err := range e.monitors.Broken {
		if !slices.ContainsFunc(before.monitors.Broken, func(b error) bool { return b.Error() == err.Error() }) {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// fallbacks returns what the agent may start with instead, the best first. Nothing is released in any of them: whoever
// wrote the configuration that is wrong may have wanted just that.
func (s Source) fallbacks() []revision {
	if s.LastGood == "" {
		return nil
	}
	var found []revision
	if data, err := os.ReadFile(s.LastGood); err == nil {
		if e, err := s.parse(s.LastGood, data); err == nil {
			e.from = "the last good configuration"
			found = append(found, e)
		}
	}
	if e, err := s.parse("", nil); err == nil {
		e.from = "the defaults"
		found = append(found, e)
	}
	for i := range found {
		found[i].file = false
		found[i].cfg.Remediate = held(found[i].cfg.Remediate)
	}
	return found
}

// held returns settings in which releases are planned and told, not done.
func held(s remediate.Settings) remediate.Settings {
	s.Kinds = maps.Clone(s.Kinds)
	for kind, mode := range s.Kinds {
		if mode == remediate.On {
			s.Kinds[kind] = remediate.DryRun
		}
	}
	if s.Mode == remediate.On {
		s.Mode = remediate.DryRun
	}
	return s
}

// keep makes e the last good configuration. A crash leaves the old one or the new one.
func (s Source) keep(e revision) error {
	if s.LastGood == "" || !e.file {
		return nil
	}
	if old, err := os.ReadFile(s.LastGood); err == nil && bytes.Equal(old, e.data) {
		return nil
	}
	if err := replaceFile(s.LastGood, e.data); err != nil {
		return fmt.Errorf("keep the last good configuration: %w", err)
	}
	return nil
}

func replaceFile(name string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*") // 0600
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}

// file returns the name of the configuration file for people.
func (s Source) file() string {
	if s.File == "" {
		return config.DefaultFile
	}
	return s.File
}
