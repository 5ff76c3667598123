package detect

func blockCoverage() []Coverage {
	return []Coverage{}
}
