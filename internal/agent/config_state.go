package agent

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/internal/config"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// configState is the configuration in force, and what is wrong with the one that the operator wants.
type configState struct {
	source Source

	mu      sync.Mutex // guards what follows
	inForce revision
	refused error    // why a valid file could not be put in force
	said    revision // what that file said
}

// wakeConfiguration wakes the check of the configuration when the daemon has read it.
const wakeConfiguration detect.WakeSource = "configuration"

// settled is how old a changed file may be before it is told that nobody has loaded it: whoever changed it may be
// about to.
const settled = 2 * time.Minute

// force takes note that e is in force.
func (c *configState) force(e revision) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inForce = e
	if e.file {
		c.refused, c.said = nil, revision{}
	}
}

// refuse takes note that an edition could not be put in force.
func (c *configState) refuse(e revision, why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused, c.said = why, e
}

// unchanged reports whether e is in force already.
func (c *configState) unchanged(e revision) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inForce.file && c.inForce.same(e)
}

// trouble returns why the file is not what the agent works with: it is wrong, or nobody has loaded it.
func (c *configState) trouble() (invalid, unloaded error) {
	if c.isInForce() {
		return nil, nil
	}
	want, err := c.source.read()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && c.refused != nil && want.same(c.said) {
		err = c.refused
	}
	if err != nil {
		text := strings.ReplaceAll(err.Error(), "\n", "; ")
		return fmt.Errorf("the configuration is refused: %s; the agent goes on with %s", text, c.goesOnWith()), nil
	}
	if !c.inForce.file || !c.inForce.same(want) {
		return nil, fmt.Errorf("%s is valid and not in force yet: nodeagent reload", c.source.file())
	}
	return nil, nil
}

// isInForce reports whether the files are what they were when the agent began to work with them: then there is no
// need to understand them again.
func (c *configState) isInForce() bool {
	_, data, err := config.Read(c.source.File)
	c.mu.Lock()
	e := c.inForce
	c.mu.Unlock()
	if err != nil || !e.file || !bytes.Equal(data, e.data) {
		return false
	}
	return e.monitors.Digest == config.ReadMonitors(e.cfg.NodeProblemDetector).Digest
}

func (c *configState) goesOnWith() string {
	if c.inForce.file {
		return "what it said before"
	}
	return c.inForce.from + ", and releases nothing"
}

// check finds that the agent does not work with the configuration that it was given.
func (c *configState) check() detect.Check {
	return detect.Check{
		ID: "agent-config", Domain: "agent", Every: time.Minute, Wakes: []detect.Wake{{Source: wakeConfiguration}},
		Summary: "the agent does not work with the configuration that it was given",
		Advice:  "`nodeagent config validate` names each mistake; after correcting them: `nodeagent reload`.",
		Doc: detect.Doc{
			Reads: []string{"the configuration file, and the files of node-problem-detector that it names"},
			Why:   "The agent does otherwise than its operator believes.",
			Faults: []detect.Fault{
				{Reason: "AgentConfigInvalid", Severity: finding.Warning,
					When: "the file is wrong: the agent goes on with what it had, or started with the last good one " +
						"or the defaults"},
				{Reason: "AgentConfigNotLoaded", Severity: finding.Info,
					When: "the file is valid, has changed a while ago, and nobody has loaded it"},
			},
		},
		Run: func(context.Context, *host.Host) ([]finding.Finding, error) { return c.look(), nil },
	}
}

func (c *configState) look() []finding.Finding {
	f := finding.Finding{Subject: finding.Subject{Kind: "agent", Name: "configuration"},
		Facts: map[string]string{"file": c.source.file()}}
	switch invalid, unloaded := c.trouble(); {
	case invalid != nil:
		f.Severity, f.Reason, f.Message = finding.Warning, "AgentConfigInvalid", invalid.Error()
	case unloaded != nil && c.isSettled():
		f.Severity, f.Reason, f.Message = finding.Info, "AgentConfigNotLoaded", unloaded.Error()
	default:
		return nil
	}
	return []finding.Finding{f}
}

func (c *configState) isSettled() bool {
	info, err := os.Stat(c.source.file())
	return err != nil || time.Since(info.ModTime()) > settled
}
