package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host/distro"
)

// distributionsPage is docs/distributions.md.
func distributionsPage(all []distro.Distribution) string {
	var b strings.Builder
	b.WriteString("# Distributions\n\nGenerated from the table in `internal/host/distro` by `go test ./cmd/nodeagent -run " +
		"Docs -update`.\n\nThe agent finds the layout of a node by itself: from the running kubelet, or, while kubelet is " +
		"dead, from its unit, its files and the layout stored when kubelet last ran (`layout.json`). A node with any " +
		"of the traces below should run a kubelet; without one, `kubelet-health` reports `KubeletNotRunning`, with the " +
		"unit of the distribution. The agent does not use a file that others than root can write, or that it cannot " +
		"parse: each check that needs the file answers \"could not tell\" and names it. `nodeagent config show` prints " +
		"the layout.\n\n| distribution | the agent finds | you set | install the agent as |\n|---|---|---|---|\n")
	for _, d := range all {
		fmt.Fprintf(&b, "| [%s](#%s) | %s | %s | %s |\n", d.Name, d.ID, cell(d.Found), cell(d.Set), cell(d.Install))
	}
	for _, d := range all {
		fmt.Fprintf(&b, "\n<a id=\"%s\"></a>\n## %s\n\n", d.ID, d.Name)
		row := func(name string, values ...string) {
			var shown []string
			for _, value := range values {
				if value != "" {
					shown = append(shown, "`"+d.Expand(value, "")+"`")
				}
			}
			if len(shown) > 0 {
				fmt.Fprintf(&b, "* %s: %s\n", name, strings.Join(shown, ", "))
			}
		}
		programs := d.Programs
		if len(programs) == 0 {
			programs = []string{"kubelet"}
		}
		row("process", programs...)
		row("units that run kubelet", d.Units...)
		row("units that run the container runtime", d.RuntimeUnits...)
		if c := d.Commands; c != nil {
			row("commands", c.Start, c.Restart, c.Status, c.Logs)
		}
		if d.Data != "" {
			row("data directory, unless moved", d.Data)
		}
		row("kubelet's root directory", d.Kubelet.Root)
		row("kubelet's kubeconfig", d.Kubelet.Kubeconfig)
		row("kubelet's settings", append([]string{d.Args, d.Config, d.ConfigDir}, d.Settings...)...)
		row("static pods", d.Kubelet.StaticPods)
		row("socket of the runtime", d.Runtime.Socket)
		row("files of the runtime", d.Runtime.Config, d.Runtime.Root, d.Runtime.State)
		row("CNI", append([]string{d.Runtime.CNIConf}, d.Runtime.CNIBins...)...)
		row("traces", d.Traces...)
		fmt.Fprintf(&b, "\nSources: %s\n", cmp.Or(links(d.Sources), "none"))
	}
	return b.String()
}

func links(sources []string) string {
	shown := make([]string, len(sources))
	for i, source := range sources {
		shown[i] = "<" + source + ">"
	}
	return strings.Join(shown, ", ")
}
