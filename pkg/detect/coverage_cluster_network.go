package detect

func clusterNetworkCoverage() []Coverage {
	return []Coverage{}
}
