package detect

func linkCoverage() []Coverage {
	return []Coverage{}
}
