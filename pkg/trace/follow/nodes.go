package follow

import "github.com/nodeagent/nodeagent/pkg/trace/nodefault"

// NodeList returns the Nodes with their pools and states, without their acts.
func (f *Follower) NodeList() map[string]nodefault.Day {
	f.mu.Lock()
	defer f.mu.Unlock()
	pods := map[string]int{}
	for _, p := range f.pods {
		pods[p.node]++
	}
	nodes := make(map[string]nodefault.Day, len(f.nodes))
	for name, n := range f.nodes {
		nodes[name] = nodefault.Day{Node: name, Pool: f.builds[n.build].Pool, Faulty: n.ready.IsZero() || n.faulty && !n.cordoned, Pods: pods[name]}
	}
	return nodes
}
