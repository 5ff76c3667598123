package follow

// Pools returns the pool of each Node.
func (f *Follower) Pools() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	pools := make(map[string]string, len(f.nodes))
	for name, n := range f.nodes {
		pools[name] = f.builds[n.build].Pool
	}
	return pools
}
