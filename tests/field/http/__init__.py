"""Servers over HTTP as the field has them: each must work through a gateway, or be refused in clear words."""
