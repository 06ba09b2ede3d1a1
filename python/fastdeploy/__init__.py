"""The module path of FastDeploy's server, for Troupe. It does not go beside FastDeploy itself in one environment."""
