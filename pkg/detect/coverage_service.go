package detect

func serviceCoverage() []Coverage {
	return []Coverage{}
}
