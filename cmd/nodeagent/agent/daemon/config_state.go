package daemon

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// configState is the configuration in force, and the errors of the configuration file.
type configState struct {
	source Source

	mu       sync.Mutex // guards the fields below
	inForce  revision
	refused  error    // why a valid file could not be put in force
	rejected revision // the content of that file
}

// wakeConfiguration wakes the check of the configuration after the daemon has read it.
const wakeConfiguration detect.WakeSource = "configuration"

// reloadGrace is how old a changed file may become before the agent reports that it was not loaded: whoever changed it
// may still reload it.
const reloadGrace = 2 * time.Minute

// force records that r is in force.
func (c *configState) force(r revision) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inForce = r
	if r.file {
		c.refused, c.rejected = nil, revision{}
	}
}

// refuse records why a revision could not be put in force.
func (c *configState) refuse(r revision, why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused, c.rejected = why, r
}

// unchanged reports whether r is already in force.
func (c *configState) unchanged(r revision) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inForce.file && c.inForce.same(r)
}

// trouble returns why the file is not in force: it is invalid, or it was not loaded.
func (c *configState) trouble() (invalid, unloaded error) {
	if c.isInForce() {
		return nil, nil
	}
	want, err := c.source.read()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && c.refused != nil && want.same(c.rejected) {
		err = c.refused
	}
	if err != nil {
		text := strings.ReplaceAll(err.Error(), "\n", "; ")
		return fmt.Errorf("the configuration is refused: %s; the agent works with %s", text, c.instead()), nil
	}
	if !c.inForce.file || !c.inForce.same(want) {
		return nil, fmt.Errorf("%s is valid and not in force yet: nodeagent reload", c.source.file())
	}
	return nil, nil
}

// isInForce reports whether the files are unchanged since they were put in force; if so, they need not be parsed again.
func (c *configState) isInForce() bool {
	_, data, err := config.Read(c.source.File)
	c.mu.Lock()
	r := c.inForce
	c.mu.Unlock()
	if err != nil || !r.file || !bytes.Equal(data, r.data) {
		return false
	}
	return r.monitors.Digest == config.ReadMonitors(r.cfg.NodeProblemDetector).Digest
}

func (c *configState) instead() string {
	if c.inForce.file {
		return "the version that was in force before"
	}
	return c.inForce.from + ", and does not release leftovers"
}

// check reports that the configuration file is not in force.
func (c *configState) check() detect.Check {
	return detect.Check{
		ID: "agent-config", Domain: "agent", Every: time.Minute, Wakes: []detect.Wake{{Source: wakeConfiguration}},
		Summary: "the configuration file is not in force",
		Advice:  "`nodeagent config validate` names each error; after correcting them: `nodeagent reload`.",
		Doc: detect.Doc{
			Reads: []string{"the configuration file, and the files of node-problem-detector that it names"},
			Why:   "The agent does something else than its operator configured.",
			Faults: []detect.Fault{
				{Reason: "AgentConfigInvalid", Severity: finding.Warning,
					When: "the file is invalid: the agent keeps the configuration that was in force, or started with " +
						"the last good one or the defaults"},
				{Reason: "AgentConfigNotLoaded", Severity: finding.Info,
					When: "the file is valid and was changed a while ago, but was not loaded"},
			},
		},
		Run: func(context.Context, *host.Host) ([]finding.Finding, error) { return c.findings(), nil },
	}
}

func (c *configState) findings() []finding.Finding {
	f := finding.Finding{Subject: finding.Subject{Kind: "agent", Name: "configuration"},
		Facts: map[string]string{"file": c.source.file()}}
	switch invalid, unloaded := c.trouble(); {
	case invalid != nil:
		f.Severity, f.Reason, f.Message = finding.Warning, "AgentConfigInvalid", invalid.Error()
	case unloaded != nil && c.isOverdue():
		f.Severity, f.Reason, f.Message = finding.Info, "AgentConfigNotLoaded", unloaded.Error()
	default:
		return nil
	}
	return []finding.Finding{f}
}

func (c *configState) isOverdue() bool {
	info, err := os.Stat(c.source.file())
	return err != nil || time.Since(info.ModTime()) > reloadGrace
}

// OwnChecks returns the checks that only the daemon has, for documentation: they must not run.
func OwnChecks() []detect.Check { return append(agent.OwnChecks(), (&configState{}).check()) }
